%% Ten thousand processes of Erlang, each with a heap and a dictionary of its own; prints what they
%% come to.
-module(processes).
-export([main/1]).

main([Scale]) ->
    Count = 10000 * list_to_integer(Scale),
    Self = self(),
    Pids = [spawn(fun() -> keep(Self, Number) end) || Number <- lists:seq(1, Count)],
    table(Count),
    lists:foreach(fun(Turn) -> turn(Turn, Pids) end, lists:seq(1, 3)),
    [Pid ! stop || Pid <- Pids],
    io:format("~p~n", [ets:foldl(fun({_, Text}, Sum) -> erlang:crc32(Sum bxor 1, Text) bxor Sum end,
                                 0, rows)]),
    halt().

table(Count) ->
    ets:new(rows, [named_table, ordered_set, public]),
    [ets:insert(rows, {Number, binary:copy(<<"a row of a table ">>, 20 + Number rem 20)})
     || Number <- lists:seq(1, Count)].

turn(Turn, Pids) ->
    [Pid ! {sum, Turn} || Pid <- Pids],
    Sums = [receive {Pid, Sum} -> Sum end || Pid <- Pids],
    io:format("~p ~p ~p~n", [Turn, length(Sums), erlang:crc32(term_to_binary(Sums))]).

keep(Parent, Number) ->
    List = [{Value, Value * Number} || Value <- lists:seq(1, 60)],
    loop(Parent, List, binary:copy(<<Number:32>>, 500), []).

loop(Parent, List, Binary, Extra) ->
    receive
        {sum, Turn} ->
            More = [{Turn, integer_to_list(Turn)} | Extra],
            Sum = erlang:crc32(term_to_binary({List, Binary, More})),
            Parent ! {self(), Sum},
            loop(Parent, List, Binary, More);
        stop ->
            ok
    end.
