package localcluster

// faultKinds is the table of faults, in the order in which they are listed: what hits a process, what
// hits its network, what hits its disk.
func faultKinds() []faultKind {
	return []faultKind{
		{Fault{Name: "kill", Text: "end the primary by SIGKILL, as a crash would", Who: RolePrimary}, (*Cluster).beginKill},
		{Fault{Name: "term", Text: "end the primary by SIGTERM: it hands over, then stops", Who: RolePrimary}, (*Cluster).beginTerm},
		{Fault{Name: "stepdown", Text: "make the primary hand over to another member", Set: true, Self: true, Who: RolePrimary}, (*Cluster).beginStepDown},
		{Fault{Name: "freeze", Text: "stop the primary in its tracks (SIGSTOP): the kernel goes on to answer for it", Who: RolePrimary}, (*Cluster).beginFreeze},
		{Fault{Name: "kill-secondary", Text: "end a secondary by SIGKILL", Set: true, Who: RoleSecondary}, (*Cluster).beginKill},
		{Fault{Name: "majority-down", Text: "kill all members but the primary, which gives up then", Set: true, Who: RolePrimary}, (*Cluster).beginMajorityDown},
		{Fault{Name: "rolling-restart", Text: "restart one member after the other, the primary last", Set: true, Self: true, Who: RoleSecondary}, (*Cluster).beginRollingRestart},
		{Fault{Name: "blackhole", Text: "drop every packet to and from the primary, silently", Network: true, Who: RolePrimary}, (*Cluster).beginBlackhole},
		{Fault{Name: "blackhole-secondary", Text: "drop every packet to and from a secondary, silently", Network: true, Set: true, Who: RoleSecondary}, (*Cluster).beginBlackhole},
		{Fault{Name: "flap", Text: "blackhole the primary for 1.5 s and heal it for 1.5 s, again and again", Network: true, Self: true, Who: RolePrimary}, (*Cluster).beginFlap},
		{Fault{Name: "link-down", Text: "take the primary's network link down", Network: true, Who: RolePrimary}, (*Cluster).beginLinkDown},
		{Fault{Name: "client-cut", Text: "cut the client machines off from the primary; the set does not notice", Network: true, Clients: true, Who: RolePrimary}, (*Cluster).beginClientCut},
		{Fault{Name: "isolate-with-client", Text: "cut the primary and the client machines off from the other members", Network: true, Set: true, Clients: true, Who: RolePrimary}, (*Cluster).beginIsolate},
		{Fault{Name: "one-way-out", Text: "the primary hears, and is not heard", Network: true, Who: RolePrimary}, (*Cluster).beginOneWayOut},
		{Fault{Name: "one-way-in", Text: "the primary is heard, and does not hear", Network: true, Who: RolePrimary}, (*Cluster).beginOneWayIn},
		{Fault{Name: "loss", Text: "drop a share of the primary's packets at random, in each direction", Network: true, Who: RolePrimary}, (*Cluster).beginLoss},
		{Fault{Name: "delay", Text: "hold the primary's packets for a while, in each direction", Network: true, Who: RolePrimary}, (*Cluster).beginDelay},
		{Fault{Name: "disk-full", Text: "fill the primary's disk", Disk: true, Who: RolePrimary}, (*Cluster).beginDiskFull},
	}
}
