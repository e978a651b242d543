package main

import (
	"errors"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
)

// exitCodeOfLibraries knows the errors of capstan's packages.
func exitCodeOfLibraries(err error) int {
	switch {
	case mongoerr.BadCredentials(err), mongoerr.CannotConnect(err):
		return exitConnect
	}
	return exitFailed
}

// hint says what to do about an error, in one line, or "".
func hint(err error) string {
	var coded *codeError
	switch {
	case errors.As(err, &coded):
		return ""
	case mongoerr.BadCredentials(err):
		return "the server refused the user or the password: check both, and authSource in the connection string"
	case mongoerr.CannotConnect(err):
		return "no usable server answered: check the address in --uri or CAPSTAN_URI, that mongod runs there " +
			"(capstan cluster status, for a local one), and the TLS settings"
	case mongoerr.IsUnauthorized(err):
		return "this user may not do that: it needs the role readWrite on the stream's database (read is enough to tail without --durable)"
	}
	return ""
}
