(* Trees, hash tables and arrays of OCaml, which compacts its heap; prints what they come to. *)
module Texts = Map.Make (String)

let count = 30_000 * int_of_string Sys.argv.(1)
let name number = Printf.sprintf "key %08d" (number * 7919 mod 1_000_003)
let text number = String.concat "" (List.init 12 (fun part -> Printf.sprintf "%d of %d " part number))

let () =
  let tree = ref Texts.empty and table = Hashtbl.create 16 in
  for number = 0 to count - 1 do
    tree := Texts.add (name number) (text number) !tree;
    Hashtbl.replace table number (Array.make 20 (float_of_int number /. 7.))
  done;
  for turn = 0 to 2 do
    let digest = ref "" in
    Texts.iter (fun name text -> digest := Digest.string (!digest ^ name ^ text)) !tree;
    let sum = ref 0. in
    for number = 0 to count - 1 do
      match Hashtbl.find_opt table number with
      | Some row ->
          row.(turn) <- row.(turn) +. 1.;
          sum := !sum +. Array.fold_left ( +. ) 0. row
      | None -> ()
    done;
    Printf.printf "%d %d %d %.3f %s\n%!" turn (Texts.cardinal !tree) (Hashtbl.length table) !sum
      (Digest.to_hex !digest);
    for number = 0 to count - 1 do
      if number mod 5 = turn then begin
        Hashtbl.remove table number;
        tree := Texts.remove (name number) !tree
      end
    done;
    if turn = 1 then Gc.compact ()
  done
