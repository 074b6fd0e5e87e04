# A database server that forks a process for each client, as a user without rights; prints what
# it answers to clients at the same time. Arguments: an empty folder; a count of rows; a user.
set -eu
[ "$(id -u)" != 0 ] || {
    chown "$3" "$1"
    exec setpriv --reuid "$3" --regid "$(id -g "$3")" --clear-groups sh "$0" "$@"
}
PATH=$(ls -d /usr/lib/postgresql/*/bin | tail -1):$PATH
cd "$1"
export PGHOST="$1" PGUSER=us PGDATABASE=postgres LC_ALL=C PGOPTIONS='-c client_min_messages=error'
rm -rf data
initdb -D data -U us -A trust --no-sync >initdb.log 2>&1 || { cat initdb.log; exit 1; }
postgres -D data -k "$1" -h '' -F -c shared_buffers=8MB -c work_mem=64MB \
    -c max_parallel_workers_per_gather=0 -c jit=off >server.log 2>&1 &
server=$!
tries=0
until pg_isready -q; do
    tries=$((tries + 1))
    [ "$tries" -lt 600 ] || { cat server.log; exit 1; }
    sleep 0.05
done
psql -qX <<EOF
create table rows as select i as number, i % 97 as part, repeat('row ' || i || ' ', 20) as text
    from generate_series(1, $2) as i;
create table sums (part int primary key, sum bigint);
insert into sums select part, 0 from generate_series(0, 96) as part;
EOF
for client in 1 2 3 4; do
    psql -qAtX <<EOF >"answers.$client" 2>&1 &
select md5(string_agg(text, '' order by md5(text || '$client'))) from rows;
select count(*), max(a.text) from rows a join rows b on a.text = b.text
    where a.number % 4 <> $client - 1;
begin;
update sums set sum = sum + (select sum(number) from rows where rows.part = sums.part);
commit;
select count(distinct array_agg) from
    (select array_agg(text) from rows group by number % (1000 * $client)) as many;
EOF
    clients="${clients:-} $!"
done
for client in $clients; do wait "$client"; done
cat answers.*
psql -qAtX -c 'select sum(sum), min(sum), max(sum) from sums'
kill -INT "$server"
wait "$server"
echo "left with $?"
