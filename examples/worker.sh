#!/bin/sh
# A Horarium worker in curl and shell:  HORARIUM_URL=http://127.0.0.1:8080 sh examples/worker.sh QUEUE PROGRAM...
# For each run, PROGRAM gets what was claimed (JSON, docs/workers.md) as its standard input. Exit status 0 completes the
# run, any other fails it. At SIGTERM the run that is under way is finished first. What HORARIUM_API_KEY holds is sent.
api=${HORARIUM_URL:-http://127.0.0.1:8080}/api/v1 queue=${1:?QUEUE PROGRAM...} stop='' claim='' delay=1
shift && asked="{\"queues\":[\"$queue\"],\"worker\":\"$(hostname)-$$\",\"wait_seconds\":30}"
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT && trap 'stop=yes; [ -z "$claim" ] || sleep 1; kill -9 $claim 2>/dev/null' TERM INT

call() { # PATH CURL-OPTIONS, in a process of its own: the answer, and its status as the last line (000: there was none)
    exec curl -sS -m 45 -w '\n%{http_code}\n' ${HORARIUM_API_KEY:+-H "Authorization: Bearer $HORARIUM_API_KEY"} \
        -H 'Content-Type: application/json' --retry 4 "$api$@"
}
# A signal may come before the process is noted; and only KILL is never lost by a process that has just been forked. An
# answer that is on its way is waited for: with it, its run would be lost until its lease ends.
waiting() { "$@" & claim=$!; [ -z "$stop" ] || kill -9 $claim; wait $claim 2>/dev/null; claim=''; }
perform() { # PROGRAM...: one run, from its start to its report
    id=$(sed -n '1s/^{"runs":\[{"id":"\([^"]*\)".*/\1/p' "$dir/run") && rm -f "$dir/lost" "$dir/code"
    token=$(sed -n '1s/.*"lease":{"token":\([0-9]*\),.*/\1/p' "$dir/run")
    ( trap 'kill $!' TERM; HORARIUM_RUN=$id "$@" <"$dir/run" & wait $!; code=$? # a signal to us does not end this wait
    while kill -0 $! 2>/dev/null; do wait $!; code=$?; done; echo $code >"$dir/code" ) & work=$!
    while sleep "${HEARTBEAT_SECONDS:-10}" && kill -0 $work; do # renew the lease; a cancel, or its loss, ends the work
        beat=$(call "/runs/$id/heartbeat" -d "{\"token\":$token}")
        case $beat in *40[49]) touch "$dir/lost" && kill $work ;; *'requested":true'*) kill $work ;; esac
    done >/dev/null 2>&1 & beats=$!
    until [ -s "$dir/code" ] || ! kill -0 $work 2>/dev/null; do wait $work; done; code=$(cat "$dir/code" || echo 1)
    kill $beats; report="/runs/$id/complete" said='"result":{"exit_code":0}'
    [ $code -eq 0 ] || { report="/runs/$id/fail" said="\"error\":\"exit code $code\""; }
    until [ -e "$dir/lost" ] || call "$report" -d "{\"token\":$token,$said}" | grep -Eqx '2..|4[01].|42[^9]'; do sleep 1; done
}
while [ -z "$stop" ]; do
    waiting call /runs/claim -d "$asked" -o "$dir/run" >"$dir/status"
    case $(tail -n 1 "$dir/status")$stop in
        200*) delay=1; perform "$@" ;;
        204* | *yes) delay=1 ;;
        # nobody there, no key, or too much to do
        *) echo "claim: status $(tail -n 1 "$dir/status")" >&2; waiting sleep $delay; delay=$((delay < 30 ? delay * 2 : 30)) ;;
    esac
done
