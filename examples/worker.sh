#!/bin/sh
# A Horarium worker in curl and shell:  HORARIUM_URL=http://127.0.0.1:8080 sh examples/worker.sh QUEUE PROGRAM...
# For each run, PROGRAM gets what was claimed (JSON, docs/workers.md) as its standard input. Exit status 0 completes the
# run, any other fails it. At SIGTERM the run that is under way is finished first. What HORARIUM_API_KEY holds is sent.
api=${HORARIUM_URL:-http://127.0.0.1:8080}/api/v1 queue=${1:?QUEUE PROGRAM...} stop='' claim='' delay=1
shift
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT && trap 'stop=yes; kill $claim 2>/dev/null' TERM INT

call() { # PATH BODY, in a process of its own: prints the answer, and its status as the last line (000: there was none)
    exec curl -s -m 45 -w '\n%{http_code}\n' ${HORARIUM_API_KEY:+-H "Authorization: Bearer $HORARIUM_API_KEY"} \
        -H 'Content-Type: application/json' -d "$2" "$api$1"
}
perform() { # PROGRAM...: one run, from its start to its report
    id=$(sed -n '1s/^{"runs":\[{"id":"\([^"]*\)".*/\1/p' "$dir/run")
    token=$(sed -n '1s/.*"lease":{"token":\([0-9]*\),.*/\1/p' "$dir/run")
    HORARIUM_RUN=$id "$@" <"$dir/run" & work=$!
    while sleep "${HEARTBEAT_SECONDS:-10}" && kill -0 $work; do # renew the lease; a cancel, or its loss, ends the work
        case $(call "/runs/$id/heartbeat" "{\"token\":$token}") in *'requested":true'* | *40[49]) kill $work ;; esac
    done >/dev/null 2>&1 & beats=$!
    wait $work; code=$?
    while kill -0 $work 2>/dev/null; do wait $work; code=$?; done # a signal to us ends a wait, and not the work
    kill $beats
    report="/runs/$id/complete" said='"result":{"exit_code":0}'
    [ $code -eq 0 ] || { report="/runs/$id/fail" said="\"error\":\"exit code $code\""; }
    until call "$report" "{\"token\":$token,$said}" | tail -n 1 | grep -q '[24]..'; do sleep 1; done
}
while [ -z "$stop" ]; do
    call /runs/claim "{\"queues\":[\"$queue\"],\"worker\":\"$(hostname)-$$\",\"wait_seconds\":30}" >"$dir/run" & claim=$!
    wait $claim; claim=''
    case $(tail -n 1 "$dir/run")$stop in
        200*) delay=1; perform "$@" ;;
        204* | *yes) delay=1 ;;
        *) sleep $delay & wait $!; delay=$((delay < 30 ? delay * 2 : 30)) ;; # nobody there, or too much to do
    esac
done
