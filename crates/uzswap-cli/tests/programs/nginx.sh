# A web server with a hundred workers (it forks them) that compresses pages for some clients, and
# takes a signal to begin anew; prints digests of what the clients got. Arguments: an empty folder;
# a count of requests.
set -eu
cd "$1"
mkdir -p pages temporary
seq -f 'line %.0f of a page, with the same words again' 1 60000 >pages/large
cat >nginx.conf <<EOF
daemon off;
worker_processes 100;
error_log error.log;
pid nginx.pid;
events { worker_connections 128; }
http {
    access_log off;
    gzip on; gzip_comp_level 9; gzip_types *; gzip_min_length 1; gzip_buffers 64 64k;
    client_body_temp_path temporary; proxy_temp_path temporary; fastcgi_temp_path temporary;
    uwsgi_temp_path temporary; scgi_temp_path temporary;
    output_buffers 4 512k; sendfile off;
    server { listen unix:$PWD/socket; root pages; }
}
EOF
rm -f socket
nginx -e error.log -p "$PWD" -c nginx.conf &
server=$!
get() { curl -s --max-time 60 --unix-socket socket http://here/"$1"; }
wait_for() {
    tries=0
    until get large >seen 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 600 ] || { cat error.log; exit 1; }
        sleep 0.05
    done
}
turn() {
    for client in 1 2 3 4; do
        i=0
        while [ "$i" -lt "$(($2 / 4))" ]; do
            curl -s --max-time 60 --compressed --unix-socket socket http://here/large | cksum
            i=$((i + 1))
        done >"got.$client" &
        clients="${clients:-} $!"
    done
    for client in $clients; do wait "$client"; done
    clients=
    cat got.* | sort | uniq -c | sed "s/^ */$1: /"
}
wait_for
turn first "$2"
kill -HUP "$server"
turn again "$2"
kill -QUIT "$server"
wait "$server"
echo "left with $?"
