// Package e2e holds the tests of the whole: real servers, the built binary where processes are
// killed, faults at the worst moment, and the oracle of internal/history as the judge.
//
// Sizes are small by default, so that the tests are part of `make test`. CAPSTAN_E2E_FULL=1 runs
// them at full size, with absolute latencies asserted too (`make bench-exactly-once`); that needs a
// machine that does nothing else.
package e2e
