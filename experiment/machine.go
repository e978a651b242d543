package experiment

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/version"
	"golang.org/x/sys/unix"
)

// Machine is where and with what an experiment ran: without it a figure means nothing.
type Machine struct {
	Time   string `json:"time"`
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory string `json:"memory"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	Driver string `json:"driver"`
	Mongod string `json:"mongod"`
	// Load is the one-minute load average before the start: above 0.5 the machine was not idle.
	Load string `json:"load_before"`
	// Commit and Command are set by the caller.
	Commit  string `json:"commit"`
	Command string `json:"command"`
}

// ThisMachine returns what it runs on now, with the version of the server as given. Commit and Command
// are left to the caller.
func ThisMachine(mongod string) Machine {
	return Machine{
		Time:   time.Now().UTC().Format(time.RFC3339),
		CPU:    procLine("/proc/cpuinfo", "model name"),
		Cores:  runtime.NumCPU(),
		Memory: procLine("/proc/meminfo", "MemTotal"),
		Kernel: kernel(),
		Go:     runtime.Version(),
		Driver: "v" + version.Driver,
		Mongod: mongod,
		Load:   firstWord("/proc/loadavg"),
	}
}

// String returns one line for people, without Time, Commit and Command.
func (m Machine) String() string {
	return fmt.Sprintf("%s, %d cores, %s memory, %s; %s, driver %s, mongod %s; load before the start %s",
		m.CPU, m.Cores, m.Memory, m.Kernel, m.Go, m.Driver, m.Mongod, m.Load)
}

// procLine returns the value of the first "key : value" line, or "unknown".
func procLine(path, key string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}

func firstWord(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	word, _, _ := strings.Cut(string(b), " ")
	return word
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
}

// ticksPerSecond is Linux's USER_HZ, which is 100 on every architecture that Go runs on.
const ticksPerSecond = 100

// processCPU returns the CPU seconds, user and system, that process pid has used; 0 if pid is 0 or
// gone.
func processCPU(pid int) float64 {
	if pid == 0 {
		return 0
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	// The second field is the name in parentheses, which may hold blanks: count from its end.
	_, rest, ok := bytes.Cut(b[bytes.LastIndexByte(b, ')')+1:], []byte(" "))
	if !ok {
		return 0
	}
	fields := strings.Fields(string(rest))
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return (user + system) / ticksPerSecond
}
