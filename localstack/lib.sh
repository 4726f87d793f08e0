# shellcheck shell=bash disable=SC2034
# Shared by up and down. Works in the bash 3.2 of macOS, without flock, timeout or setsid.

umask 022

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
env_file=$here/env

say() { printf '%s\n' "$*"; }
die() {
    printf 'localstack: %s\n' "$*" >&2
    exit 1
}

is_root() { [ "$(id -u)" -eq 0 ]; }

# PostgreSQL refuses to run as root and then runs as nobody, who cannot look into root's home.
if [ -n "${ORDERED_OUTBOX_CACHE:-}" ]; then
    cache=$ORDERED_OUTBOX_CACHE
elif is_root; then
    cache=/var/cache/ordered-outbox
else
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/ordered-outbox
fi

checkout_hash=$(printf '%s' "$here" | cksum | cut -d' ' -f1)
state=$cache/state/$checkout_hash
project=ordered-outbox-$checkout_hash

# within SECONDS COMMAND...: its status, or 124 when it took too long.
within() {
    local limit=$(($1 * 10)) pid
    shift
    "$@" </dev/null &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        if [ "$limit" -le 0 ]; then
            kill "$pid" 2>/dev/null || true
            wait "$pid" 2>/dev/null || true
            return 124
        fi
        limit=$((limit - 1))
        sleep 0.1
    done
    wait "$pid"
}

arguments_of() { ps -ww -o args= -p "$1" 2>/dev/null || true; }

# A process id can belong to somebody else by now: only one whose arguments name our folder is ours.
is_ours() {
    case $(arguments_of "$1") in
        *"$state/"* | *"$state") return 0 ;;
        *) return 1 ;;
    esac
}

state_lock=$state.lock
venv_lock=$cache/venv.lock
unlock() { if [ "$(readlink "$1" 2>/dev/null)" = "$$" ]; then rm -f "$1"; fi; }
trap 'unlock "$state_lock"; unlock "$venv_lock"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

lock_is_stale() {
    local owner
    owner=$(readlink "$1" 2>/dev/null) || return 1
    case $(arguments_of "$owner") in
        *up | *"up --with-postgres15" | *down) return 1 ;;
        *) return 0 ;;
    esac
}

# A symbolic link is made in one step together with its owner's process id, so there is no
# moment at which a lock has no owner.
lock() {
    local path=$1 waited=0
    until ln -s "$$" "$path" 2>/dev/null; do
        if lock_is_stale "$path"; then
            # Only one may remove it, or the second would remove the first one's new lock.
            if ln -s "$$" "$path.break" 2>/dev/null; then
                if lock_is_stale "$path"; then rm -f "$path"; fi
                rm -f "$path.break"
                continue
            fi
        fi
        [ "$waited" -ne 20 ] || say "Waiting for another run ($(readlink "$path" 2>/dev/null)) to finish ..."
        waited=$((waited + 1))
        [ "$waited" -lt 6000 ] || die "$path is still locked after ten minutes; remove it and $path.break if no other run is alive."
        sleep 0.1
    done
}

postgres_pid() { head -n 1 "$state/$1/data/postmaster.pid" 2>/dev/null || true; }

postgres_runs() {
    local pid
    pid=$(postgres_pid "$1")
    [ -n "$pid" ] && is_ours "$pid"
}

localstack_pid() { cat "$state/localstack.pid" 2>/dev/null || true; }

localstack_runs() {
    local pid
    pid=$(localstack_pid)
    [ -n "$pid" ] && is_ours "$pid"
}

# stop PID SIGNAL: waits until our process is gone, and insists after ten seconds. A dead one
# that nobody has waited for yet has no arguments any more, but would still take a signal.
stop() {
    local tries=0
    kill "-$2" "$1" 2>/dev/null || true
    while is_ours "$1"; do
        tries=$((tries + 1))
        [ "$tries" -ne 100 ] || kill -KILL "$1" 2>/dev/null || true
        [ "$tries" -lt 150 ] || return 0
        sleep 0.1
    done
}

compose() { docker compose --project-name "$project" --file "$here/compose.yaml" "$@"; }
