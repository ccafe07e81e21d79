#!/usr/bin/env bash
# Stands for Python, pip, hvd.build and mv in tests of the Makefile: it writes down each call, does
# a shadow of the work, and at the moment named by STOP_AT waits to be killed or let go.

moment() {
    echo "$1" >>calls
    [ "$1" = "${STOP_AT:-}" ] || return 0
    touch stopped
    for _ in $(seq 600); do
        [ -e go ] && return 0
        sleep 0.05
    done
}

if [ "$(basename "$0")" = mv ]; then
    moment "rename $(basename "$2")"
    exec /bin/mv "$@"
fi
case "$*" in
"-c "*)
    echo "${FAKE_VERSION:-3.11.7}"
    ;;
"-m venv "*)
    mkdir -p "$3/bin"
    touch "$3/made-in-run-$RUN"
    moment "venv begins"
    cp "$0" "$3/bin/python"
    moment "venv ends"
    ;;
"-m pip install "*--editable*)
    moment "packages begin"
    echo "pip says ${FAKE_PIP_STATUS:-0}"
    [ "${FAKE_PIP_STATUS:-0}" = 0 ] || exit "$FAKE_PIP_STATUS"
    moment "packages end"
    ;;
"-m hvd.build "*)
    moment "horovod begins"
    echo "Horovod says ${FAKE_HOROVOD_STATUS:-0}"
    exit "${FAKE_HOROVOD_STATUS:-0}"
    ;;
esac
