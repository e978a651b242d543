// Package replication measures and tries `capstan replicate` on servers of its own: random runs in which a workload changes the
// source while capstan and the servers are killed, frozen and cut off, judged by what both sides hold in the end (Seeds), and
// figures of the copy, of live changes, of their lag, and of comparing, against naive programs in the same run (Figures).
//
// It promises that the seed of a random run decides what the workload intends and which faults are planned when; not which
// commands succeed, as real servers answer. capstan runs as a process of its own and is killed by SIGKILL. What both sides
// hold is compared twice: by package verify, and by Compare, which shares no code with it.
package replication
