#!/bin/sh
# Runs the steps of a board day on this machine, and packs their results into board-day.tar.gz next to this script. It
# needs no root, compiler or network, and writes only into its own folder.
#
#   sh board-day.sh [--only NAME,...] [--skip NAME,...] [--minutes N] [--again] [--quick] [--serial PORT]
#   sh board-day.sh --list      prints the steps: name, group, limit in seconds, needs and command
#   sh board-day.sh --status    prints whether a run is going on, and the recorded steps
#
# A NAME is that of a step or a group. A step that has a line in day/steps.jsonl is not run again, so the same command
# continues after an interruption. A step that fails is recorded and passed over; --again runs such steps once more.
# --minutes limits the time of all steps together (30). A step that has begun may exceed it, unless it is of the group
# modes, which comes last. A step without time is recorded as skipped, and a later start with more minutes runs it.
# --quick makes all measurements few and short. As root, the groups clocks and modes change power mode and clocks, and
# restore both; after an interruption, the next start does.
#
# Status: 0 every step is recorded and none failed; 1 a step failed; 2 the request was wrong; 3 the disk is full, or
# another run is going on; 4 the minutes are used up.
#
# A rehearsal on another machine sets ELSA_EMULATOR, the words before each program of the board; ELSA_ROOT, the folder of
# the board's /sys, /proc, /etc and /usr; and ELSA_TEST_THREADS, the number of GPU tests that run at once.

here=$(cd "$(dirname "$0")" && pwd) || exit 2
out=$here/day
file=$out/steps.jsonl
release=$(cat "$here/release" 2>/dev/null)
target=$(cat "$here/target" 2>/dev/null)
root=${ELSA_ROOT:-}
nvpmodel=$root/usr/sbin/nvpmodel
jetson_clocks=$root/usr/bin/jetson_clocks
# Free space that a step may need.
needed_kib=16384
# A step that begins this often and never ends brings the board down, and is passed over.
attempts=3
# Status of a step that finds out itself that something is missing.
absent=77
. "$here/steps.sh" || exit 2

# Prints the free space in KiB.
space() {
  df -Pk "$here" 2>/dev/null | awk 'NR == 2 { print $4 }'
}

# Ends the run because the disk is full.
full() {
  echo "board-day: $here: $(space) KiB free; needed: $needed_kib KiB; then run the same command again" >&2
  rm -rf "$out/lock"
  exit 3
}

# Ends the run if little space is left.
enough() {
  free=$(space)
  [ -z "$free" ] || [ "$free" -ge $needed_kib ] || full
}

# Appends a line to the records. A line that a loss of power has cut off gets its end first.
append() {
  [ ! -s "$file" ] || [ "$(tail -c 1 "$file" | wc -l)" -eq 1 ] || echo >>"$file"
  { echo "$1" >>"$file"; } 2>/dev/null
  [ "$(tail -n 1 "$file")" = "$1" ] || full
  sync
}

# Prints the records of a kind (begin or step) of a step of this release.
records() {
  grep "^{\"what\":\"$1\",\"id\":\"$2\",\"release\":\"$release\",.*}\$" "$file"
}

# Records a step: name, seconds, status and result.
record() {
  fields="\"at\":$(date +%s),\"seconds\":$2,\"status\":$3,\"result\":\"$4\""
  append "{\"what\":\"step\",\"id\":\"$1\",\"release\":\"$release\",$fields}"
  echo "$1: $4, $2 s"
}

# Succeeds if this machine has all needs of a list; otherwise prints the first missing one.
have() {
  for need in $(echo "$1" | tr ',' ' '); do
    case $need in
    -) ;;
    gpu) grep -q '"name":"cuda","present":true' "$out/info.out" 2>/dev/null ;;
    root) [ "$(id -u)" = 0 ] ;;
    serial) [ -n "$serial" ] ;;
    sanitizer) [ -n "$(sanitizer)" ] ;;
    numpy | torch | onnxruntime) [ -z "$ELSA_EMULATOR" ] && python3 -c "import $need" 2>/dev/null ;;
    /*) [ -e "$root$need" ] ;;
    *) [ -e "$here/$need" ] ;;
    esac || { echo "needs $need"; return 1; }
  done
}

# Succeeds if a list separated by commas contains one of the other arguments.
among() {
  list=,$1,
  shift
  for word in "$@"; do
    case $list in *",$word,"*) return 0 ;; esac
  done
  return 1
}

# Succeeds if a process with this number is one of this script's.
ours() {
  [ -n "$1" ] && [ "$1" != $$ ] && tr '\000' ' ' 2>/dev/null <"/proc/$1/cmdline" | grep -q 'board-day\.sh'
} 2>/dev/null

# Keeps other runs out. Takes over from a run that was killed, and ends the step that it left behind.
lock() {
  mkdir -p "$out" || full
  if ! mkdir "$out/lock" 2>/dev/null; then
    if ours "$(cat "$out/lock/pid" 2>/dev/null)"; then
      echo "board-day: another run is going on: sh board-day.sh --status" >&2
      exit 3
    fi
    left=$(cat "$out/lock/child" 2>/dev/null)
    # The process is the leader of its group.
    if ours "$left"; then kill -s KILL -- "-$left"; fi
    rm -rf "$out/lock"
    mkdir "$out/lock" || full
  fi
  echo $$ >"$out/lock/pid" || full
}

# Ends a run: packs the results.
leave() {
  echo "$1" >"$out/status"
  if tar -czf "$here/board-day.tar.gz.new" -C "$here" --exclude=day/lock day; then
    mv "$here/board-day.tar.gz.new" "$here/board-day.tar.gz"
  else
    rm -f "$here/board-day.tar.gz.new"
    full
  fi
  rm -rf "$out/lock"
  exit "$1"
}

# Ends a run after a signal. The step that is running leaves no record, so it runs again.
stop() {
  [ -z "$child" ] || kill "$child" 2>/dev/null
  undo
  rm -rf "$out/lock"
  exit 130
}

# Records a step for which no time is left: name, seconds that it ran, status.
skipped() {
  echo "$minutes minutes are used up" >>"$out/$1.err"
  record "$1" "$2" "$3" skipped
  used_up=yes
}

# Runs a step under its limit and records it: name, limit, and the seconds after which no time is left, if they end it.
attempt() {
  enough
  # A step that has ended has a record.
  if [ $(($(records begin "$1" | wc -l) - $(records step "$1" | wc -l))) -ge $attempts ]; then
    record "$1" 0 0 abandoned
    return
  fi
  begun=$(date +%s)
  append "{\"what\":\"begin\",\"id\":\"$1\",\"release\":\"$release\",\"at\":$begun}"
  longest=$2
  [ -z "$3" ] || [ "$3" -ge "$2" ] || longest=$3
  timeout -k 10 "$longest" sh "$here/board-day.sh" --step "$1" >"$out/$1.out" 2>"$out/$1.err" </dev/null &
  child=$!
  echo "$child" >"$out/lock/child"
  wait "$child"
  status=$?
  child=''
  undo
  # A step that a full disk has stopped runs again.
  [ "$status" = 0 ] || enough
  took=$(($(date +%s) - begun))
  case $status in 0) result="done" ;; "$absent") result=absent ;; 124 | 137) result=late ;; *) result=failed ;; esac
  if [ "$result" = late ] && [ "$longest" -lt "$2" ]; then
    skipped "$1" "$took" "$status"
  else
    record "$1" "$took" "$status" "$result"
  fi
}

# Prints the state of the last run, and the recorded steps.
status() {
  if ours "$(cat "$out/lock/pid" 2>/dev/null)"; then
    echo running
  else
    echo "ended $(cat "$out/status" 2>/dev/null)"
  fi
  ours_alone="^{\"what\":\"step\",\"id\":\"\([^\"]*\)\",\"release\":\"$release\",.*"
  sed -n "s/$ours_alone\"seconds\":\([0-9]*\),.*\"result\":\"\([a-z]*\)\"}\$/\1: \3, \2 s/p" "$file" 2>/dev/null
}

# Ends the script because of a wrong request.
refuse() {
  echo "board-day: $1" >&2
  exit 2
}

only='' skip='' minutes=30 again='' child=''
quick=${quick:-} serial=${serial:-} ELSA_EMULATOR=${ELSA_EMULATOR:-}
while [ $# -gt 0 ]; do
  case $1 in
  --step) step "$2"; exit ;;
  --list) steps; exit ;;
  --status) status; exit 0 ;;
  --again) again=yes ;;
  --quick) quick=yes ;;
  --only | --skip | --minutes | --serial)
    [ $# -gt 1 ] || refuse "$1: no value"
    case $1 in --only) only=$2 ;; --skip) skip=$2 ;; --minutes) minutes=$2 ;; --serial) serial=$2 ;; esac
    shift
    ;;
  *) refuse "$1; allowed: the options at the start of this file" ;;
  esac
  shift
done
case $minutes in '' | *[!0-9]*) refuse "--minutes: $minutes; allowed: a number" ;; esac
for name in $(echo "$only,$skip" | tr ',' ' '); do
  steps | cut -d' ' -f1,2 | tr ' ' '\n' | grep -qx -- "$name" || refuse "$name; allowed: a step or a group of --list"
done
command -v timeout >/dev/null || refuse "timeout is missing; install coreutils"
[ -n "$release" ] || refuse "$here/release is missing; copy the whole folder"
export quick serial ELSA_EMULATOR ELSA_ROOT="$root" RUST_BACKTRACE=0

lock
rm -f "$out/status"
trap stop INT TERM HUP
undo
if [ -n "$again" ] && [ -f "$file" ]; then
  grep "\"result\":\"done\"}\$" "$file" >"$file.new"
  mv "$file.new" "$file"
fi
is() { if "$@" >/dev/null; then echo true; else echo false; fi; }
fields="\"root\":$(is have root),\"emulated\":$(is [ -n "$ELSA_EMULATOR" ]),\"quick\":$(is [ -n "$quick" ])"
append "{\"what\":\"run\",\"release\":\"$release\",\"target\":\"$target\",\"at\":$(date +%s),$fields}"

failed=0 passed=0 used_up=''
for line in $(steps | cut -d' ' -f1-4 | tr ' ' ':'); do
  id=${line%%:*} rest=${line#*:}
  group=${rest%%:*} rest=${rest#*:}
  limit=${rest%%:*} needs=${rest#*:}
  # Other steps read the output of info.
  [ -z "$only" ] || [ "$id" = info ] || among "$only" "$id" "$group" || continue
  [ -z "$skip" ] || ! among "$skip" "$id" "$group" || continue
  # A step that was skipped runs as soon as there is time.
  if ! records step "$id" | grep -qv '"skipped"}$'; then
    seconds="s/^{\"what\":\"step\",.*\"release\":\"$release\",.*\"seconds\":\([0-9]*\),.*/\1/p"
    used=$(sed -n "$seconds" "$file" | awk '{ sum += $1 } END { print sum + 0 }')
    left=$((minutes * 60 - used)) cut=''
    [ "$group" != modes ] || cut=$left
    # Before info has run, nothing is known about the GPU.
    if { [ "$left" -gt 0 ] || [ -s "$out/info.out" ]; } && ! reason=$(have "$needs"); then
      echo "$reason" >"$out/$id.err"
      record "$id" 0 0 absent
    elif [ "$left" -gt 0 ]; then
      attempt "$id" "$limit" "$cut"
    else
      used_up=yes
      [ -n "$(records step "$id")" ] || skipped "$id" 0 0
    fi
  fi
  case $(records step "$id" | tail -n 1) in
  *'"done"}') passed=$((passed + 1)) ;;
  *'"absent"}' | *'"skipped"}') ;;
  *) failed=$((failed + 1)) ;;
  esac
done
echo "$passed passed, $failed failed: $here/board-day.tar.gz"
if [ -n "$used_up" ]; then
  echo "board-day: $minutes minutes are used up; more --minutes continue" >&2
  leave 4
fi
[ "$failed" -eq 0 ] || leave 1
leave 0
