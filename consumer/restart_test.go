package consumer_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/seed-12ef14e5/capstan/checkpoint"
	"github.com/seed-12ef14e5/capstan/consumer"
	"github.com/seed-12ef14e5/capstan/record"
)

// mortal is a store of a process that dies: from then on nothing of it reaches the disk.
type mortal struct {
	*checkpoint.Memory
	mu   sync.Mutex
	dead bool
}

func (m *mortal) die() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = true
}

func (m *mortal) Save(ctx context.Context, cp record.Checkpoint) (record.Checkpoint, error) {
	m.mu.Lock()
	dead := m.dead
	m.mu.Unlock()
	if dead {
		return record.Checkpoint{}, errAway
	}
	return m.Memory.Save(ctx, cp)
}

// I3: wherever a consumer dies, the next one begins at or before the first record that was not handled,
// and in the end everything was handled. The order of completion, the failures and the moment of
// death are drawn; the clock is fake.
func TestAfterACrashDeliveryResumesAtOrBeforeTheFirstUnhandledRecord(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		var (
			count   = rapid.IntRange(1, 300).Draw(rt, "records")
			srcs    = rapid.IntRange(1, 5).Draw(rt, "srcs")
			crashes = rapid.SliceOfN(rapid.IntRange(0, 3000), 0, 6).Draw(rt, "crashes after ms")
			workers = rapid.IntRange(1, 5).Draw(rt, "workers")
			window  = rapid.IntRange(1, 50).Draw(rt, "window")
			every   = rapid.IntRange(1, 500).Draw(rt, "checkpoint every ms")
			seed    = rapid.Uint64().Draw(rt, "seed")
		)
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			var mu sync.Mutex
			draw := func(n int) int { mu.Lock(); defer mu.Unlock(); return rng.IntN(n) }
			l := fill(count, srcs)
			disk := checkpoint.NewMemory()
			all := &handled{do: func(ctx context.Context, _ record.Record, attempt int) error {
				if err := wait(ctx, time.Duration(draw(50))*time.Millisecond); err != nil {
					return err
				}
				if attempt < 3 && draw(10) == 0 {
					return errBad
				}
				return nil
			}}
			open := func(ctx context.Context, start record.Start) (consumer.Source, error) {
				src, err := l.open(ctx, start)
				for n := 1; n <= src.(*logSource).at; n++ {
					if !all.has(n) {
						rt.Fatalf("resumes behind record %d, and record %d was not handled", src.(*logSource).at, n)
					}
				}
				return src, err
			}
			cfg := consumer.Config{Workers: workers, MaxInFlight: window, Start: earliest, RetryInitial: 10 * time.Millisecond,
				CheckpointEvery: time.Duration(every) * time.Millisecond, DrainTimeout: -1}
			for _, after := range append(crashes, -1) {
				store := &mortal{Memory: disk}
				c, err := consumer.New("orders", open, all, store, cfg)
				if err != nil {
					rt.Fatal(err)
				}
				if after < 0 {
					if err := c.Run(t.Context()); err != nil {
						rt.Fatal(err)
					}
					break
				}
				ctx, kill := context.WithTimeout(t.Context(), time.Duration(after)*time.Millisecond)
				context.AfterFunc(ctx, store.die)
				_ = c.Run(ctx) // what a dying process says does not count
				kill()
			}
			for n := 1; n <= count; n++ {
				if !all.has(n) {
					rt.Fatalf("record %d of %d was never handled", n, count)
				}
			}
		})
	})
}

// A consumer that begins at the latest record and dies before its first checkpoint was due has read
// records that the next one must read again, although "latest" is a later place by then.
func TestACrashBeforeTheFirstCheckpointDoesNotMoveTheStart(t *testing.T) {
	t.Parallel()
	for name, where := range map[string]record.Where{"latest": record.Latest, "earliest": record.Earliest, "time": record.AtTime} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLog()
				if where == record.Latest {
					l.append(message(1, "p/1", 1), message(2, "p/1", 2))
				}
				store := &mortal{Memory: checkpoint.NewMemory()}
				cfg := consumer.Config{Start: record.Start{Where: where}, CheckpointEvery: time.Hour, DrainTimeout: -1}
				h := &handled{do: func(ctx context.Context, _ record.Record, _ int) error {
					cp := stored(t, store.Memory)
					if cp.Position.TS != (record.Timestamp{T: 1_700_000_000 - 60}) || cp.Marks["p/1"] != 2 || cp.Fingerprint != "f00d" {
						t.Errorf("while the first record is handled the checkpoint is %+v, want in front of it", cp)
					}
					<-ctx.Done()
					return ctx.Err()
				}}
				ctx, kill := context.WithCancel(t.Context())
				done := start(ctx, newConsumer(t, l, h, store, cfg))
				synctest.Wait()
				l.append(message(3, "p/1", 3))
				synctest.Wait()
				store.die()
				kill()
				<-done
				l.append(message(4, "p/1", 4))
				l.ended = true
				h.do = nil
				if err := newConsumer(t, l, h, store.Memory, cfg).Run(t.Context()); err != nil {
					t.Fatal(err)
				}
				if h.count() != 2 || !h.has(3) || !h.has(4) { // I3
					t.Errorf("%d handled, record 3 %v, record 4 %v", h.count(), h.has(3), h.has(4))
				}
			})
		})
	}
}

const (
	childRecords = 30_000
	childEnv     = "CAPSTAN_TEST_CONSUMER_DIR"
)

// TestConsumerProcess is no test: it is the process that the next one kills.
func TestConsumerProcess(t *testing.T) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		t.Skip("run by TestEveryRecordIsHandledAcrossKills")
	}
	out, err := os.OpenFile(filepath.Join(dir, "handled"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	store, err := checkpoint.NewFile(filepath.Join(dir, "checkpoints.json"), checkpoint.FileConfig{})
	if err != nil {
		t.Fatal(err)
	}
	l := fill(childRecords, 5)
	open := func(ctx context.Context, start record.Start) (consumer.Source, error) {
		src, err := l.open(ctx, start)
		_, _ = fmt.Fprintf(out, "open %d\n", src.(*logSource).at)
		return src, err
	}
	h := consumer.HandlerFunc(func(_ context.Context, r record.Record) error {
		_, err := fmt.Fprintf(out, "done %d\n", r.Position.TS.I) // one write: whole, or not there
		return err
	})
	c, err := consumer.New("orders", open, h, store, consumer.Config{Workers: 3, MaxInFlight: 200, Start: earliest, CheckpointEvery: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// I3, I7: the same with a real process, a real file and SIGKILL.
func TestEveryRecordIsHandledAcrossKills(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var kills int
	for run := 0; ; run++ {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestConsumerProcess$", "-test.count=1")
		cmd.Env = append(os.Environ(), childEnv+"="+dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		before := size(filepath.Join(dir, "handled"))
		if run < 10 {
			// Killed by how much it has done, and not by the clock: the machine may be slow.
			goal := before + int64(5_000+rand.IntN(25_000))
			deadline := time.Now().Add(time.Minute)
			for size(filepath.Join(dir, "handled")) < goal && time.Now().Before(deadline) {
				time.Sleep(time.Millisecond)
			}
			if err := cmd.Process.Kill(); err == nil {
				kills++
			}
		}
		err := cmd.Wait()
		if err == nil {
			break
		}
		if run >= 10 {
			t.Fatalf("the process that nobody killed: %v", err)
		}
	}
	done, opens := judge(t, filepath.Join(dir, "handled"))
	t.Logf("%d kills, %d starts", kills, opens)
	for n := 1; n <= childRecords; n++ {
		if !done[n] {
			t.Fatalf("record %d was never handled", n)
		}
	}
	if opens < 3 {
		t.Errorf("only %d starts: nothing was tested", opens)
	}
}

// judge reads what the processes wrote and checks that each began at or before the first record that
// was not handled by then.
func judge(t *testing.T, path string) (done map[int]bool, opens int) {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	done = map[int]bool{}
	safe := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		what, number, _ := strings.Cut(lines.Text(), " ")
		n, err := strconv.Atoi(number)
		if err != nil {
			t.Fatalf("line %q: %v", lines.Text(), err)
		}
		switch what {
		case "done":
			done[n] = true
		case "open":
			opens++
			for ; safe < n; safe++ {
				if !done[safe+1] {
					t.Fatalf("start %d is behind record %d, and record %d was not handled", opens, n, safe+1)
				}
			}
		}
	}
	return done, opens
}

func size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}
