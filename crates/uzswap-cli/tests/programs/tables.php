<?php
// Arrays, strings and objects on php's heap, with its compiler on; prints what they come to.
ini_set('memory_limit', '-1');
$count = 60000 * (int) $argv[1];

class Row
{
    public function __construct(public int $number, public string $name, public array $list)
    {
    }
}

$rows = [];
for ($i = 0; $i < $count; $i++) {
    $rows["key $i"] = new Row($i, str_repeat("row $i of a table ", 20), [$i, $i / 7, "$i"]);
}
for ($turn = 0; $turn < 3; $turn++) {
    $hash = hash_init('sha256');
    foreach ($rows as $key => $row) {
        hash_update($hash, $key . $row->name . implode(',', $row->list));
    }
    for ($i = $turn; $i < $count; $i += 7) {
        unset($rows["key $i"]);
    }
    foreach ($rows as $row) {
        if ($row->number % 5 === $turn) {
            $row->list[] = str_repeat("more $turn ", 4);
        }
    }
    $numbers = array_fill(0, $count, $turn);
    for ($i = 1; $i < $count; $i++) {
        $numbers[$i] = ($numbers[$i - 1] * 31 + $i) % 1000003;
    }
    sort($numbers);
    $middle = $numbers[intdiv($count, 2)];
    echo $turn, ' ', count($rows), ' ', $middle, ' ', hash_final($hash), "\n";
}
