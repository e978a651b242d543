package main

import (
	"errors"
	"net/http"

	"github.com/seed-12ef14e5/capstan/consumer"
	"github.com/seed-12ef14e5/capstan/internal/admin"
	"github.com/seed-12ef14e5/capstan/internal/daemon"
	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/stream"
	"github.com/seed-12ef14e5/capstan/tailer"
)

// exitCodeOfLibraries knows the errors of capstan's packages.
func exitCodeOfLibraries(err error) int {
	switch {
	case errors.As(err, new(*admin.UnreachableError)), adminRefuses(err):
		return exitConnect
	case errors.As(err, new(*replicator.LostError)):
		return exitLost
	case errors.As(err, new(*daemon.RouteError)), errors.As(err, new(*daemon.NotDrainedError)):
		return exitFailed // a daemon with a route that does not connect is no command that does not
	case mongoerr.BadCredentials(err), cannotConnect(err):
		return exitConnect
	case errors.As(err, new(*tailer.GapError)), errors.As(err, new(*consumer.OnGapError)), errors.As(err, new(*tailer.HistoryLostError)),
		errors.As(err, new(*replicator.LostError)):
		return exitLost
	case errors.Is(err, stream.ErrBadName):
		return exitUsage
	}
	return exitFailed
}

// adminRefuses reports whether a daemon refused a token.
func adminRefuses(err error) bool {
	answer, ok := errors.AsType[*admin.AnswerError](err)
	return ok && (answer.Code == http.StatusUnauthorized || answer.Code == http.StatusForbidden)
}

func cannotConnect(err error) bool {
	return errors.As(err, new(*connectError)) || mongoerr.CannotConnect(err)
}

// hint says what to do about an error, in one line, or "".
func hint(err error) string {
	switch {
	case errors.As(err, new(*codeError)), errors.As(err, new(*stream.PrivilegeError)), errors.As(err, new(*admin.UnreachableError)):
		return "" // they say it
	case errors.Is(err, replicator.ErrNotEmpty):
		return "--existing merge compares and replaces, --existing drop drops them first, --rename gives other names"
	case errors.As(err, new(*replicator.MismatchError)):
		return "--resync copies again, comparing; --name NAME begins another route"
	case errors.As(err, new(*replicator.BusyError)):
		return "--take-over takes the route from it"
	case errors.As(err, new(*replicator.LostError)):
		return "--resync copies again, comparing with what is there"
	case mongoerr.BadCredentials(err):
		return "the server refused the user or the password: check both, and authSource in the connection string"
	case cannotConnect(err) && mongoerr.IsNoPrimary(err):
		return "no usable server answered as a member of the set: check replicaSet= in the connection string (the set's real name is " +
			"_id in rs.conf()), the address, and that its members run"
	case cannotConnect(err):
		return "no usable server answered: check the address in the connection string (--uri, CAPSTAN_URI, …), that mongod runs there " +
			"(capstan cluster status, for a local one), and the TLS settings"
	case mongoerr.IsUnauthorized(err):
		return "this user may not do that: it needs the role readWrite on the stream's database (read is enough to tail without --durable)"
	case errors.As(err, new(*tailer.GapError)), errors.As(err, new(*consumer.OnGapError)):
		return "run it again with --on-gap report to go on behind the gap"
	}
	return ""
}
