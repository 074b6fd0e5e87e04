# Trees, strings, hashes and structs on ruby's heap, which it compacts; prints what they come to.
require 'digest'

count = 30_000 * ARGV[0].to_i
Row = Struct.new(:number, :name, :list)

def grow(depth)
  depth.zero? ? [nil, nil] : [grow(depth - 1), grow(depth - 1)]
end

def size(tree)
  tree[0].nil? ? 1 : 1 + size(tree[0]) + size(tree[1])
end

rows = Array.new(count) { |i| Row.new(i, "row #{i} of a list " * 20, [i, i.to_f / 7, i.to_s]) }
by_name = rows.to_h { |row| [row.name, row] }
symbols = Array.new(count / 10) { |i| "symbol_#{i}".to_sym }
kept = grow(15)
3.times do |turn|
  digest = Digest::SHA256.new
  rows.each { |row| digest << row.name << row.list.join(',') }
  by_name.each { |name, row| digest << name[0, 20] << row.number.to_s }
  symbols.each { |symbol| digest << symbol.to_s }
  (turn...count).step(11) { |i| rows[i].list << turn << ('more ' * turn) }
  dropped = (1..10).sum { |depth| size(grow(depth)) }
  GC.compact if turn == 1 && GC.respond_to?(:compact)
  puts [turn, by_name.size, size(kept), dropped, digest.hexdigest].join(' ')
end
child = fork do
  puts rows.sum { |row| row.name.sum }
end
Process.wait(child)
puts rows.sort_by(&:name).each_slice(1000).sum { |part| part[0].number }
