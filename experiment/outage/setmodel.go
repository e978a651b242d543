package outage

import (
	"math"
	"time"

	"github.com/anishathalye/porcupine"
)

// setTimeout bounds the check of a trial. A key has one write and some reads, which takes microseconds.
const setTimeout = time.Minute

// setKey is one element of the set: what a writer wrote under a number.
type setKey struct {
	writer string
	seq    int64
}

// setInput is one operation on one element.
type setInput struct {
	key setKey
	// add is a write. Otherwise it is a read that found the element, or, with final, the last read of all,
	// which found it count times.
	add, final bool
	count      int
}

// setModel is a set with a counter per element. Each element is judged on its own. A write that was
// never acknowledged has no end, so it may take effect at any time, also after the last read, which is
// as good as never.
var setModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		at := map[setKey]int{}
		var parts [][]porcupine.Operation
		for _, op := range history {
			key := op.Input.(setInput).key
			i, ok := at[key]
			if !ok {
				i = len(parts)
				at[key] = i
				parts = append(parts, nil)
			}
			parts[i] = append(parts[i], op)
		}
		return parts
	},
	Init: func() any { return 0 },
	Step: func(state, input, _ any) (bool, any) {
		n, in := state.(int), input.(setInput)
		switch {
		case in.add:
			return true, n + 1
		case in.final:
			return n == in.count, n
		}
		return n > 0, n
	},
}

// CheckSets reports whether there is an order of all that was done in a trial which explains what every
// write was answered, what the majority reads saw and what was stored in the end: stored counts the
// documents by their writer (Event.Src) and number. It judges every write of every writer but the plain client's: an acknowledged one is there once from some moment within its call on and for good, one
// that was reported as not written never, one whose outcome is unknown at most once.
//
// A write of which no event tells was never sent, but for one after the last of each writer: that was
// in flight when its process ended, and may be there.
func CheckSets(t *Trial, stored map[string]map[int64]int) bool {
	var ops []porcupine.Operation
	end := t.Ended
	keys := map[setKey]bool{}
	judged := map[string]bool{} // who wrote in this trial
	for _, e := range t.Events {
		judged[e.Src] = judged[e.Src] || e.Kind == KindWrite && e.Src != "" && e.Role != Plain
	}
	last := map[string]Event{} // the last write of each writer
	for _, e := range t.Events {
		end = max(end, e.End())
		seq, writer := e.Seq, e.Src
		if e.Kind == KindRead {
			seq = e.Seen
		}
		if e.Role == Plain || !judged[writer] || seq == 0 || e.Kind == KindRead && !e.OK {
			continue
		}
		key := setKey{writer, seq}
		op := porcupine.Operation{ClientId: len(ops), Call: int64(e.Start), Return: int64(e.End())}
		switch e.Kind {
		case KindWrite:
			keys[key] = true
			if seq > last[writer].Seq {
				last[writer] = e
			}
			if !e.OK && e.Outcome != Unknown {
				continue
			}
			if op.Input = (setInput{key: key, add: true}); !e.OK {
				op.Return = math.MaxInt64
			}
		case KindRead:
			keys[key] = true
			op.Input = setInput{key: key}
		default:
			continue
		}
		ops = append(ops, op)
	}
	for writer := range last {
		flight := setKey{writer, last[writer].Seq + 1}
		ops = append(ops, porcupine.Operation{
			ClientId: len(ops), Input: setInput{key: flight, add: true}, Call: int64(last[writer].End()), Return: math.MaxInt64,
		})
		keys[flight] = true
		for seq := range stored[writer] {
			keys[setKey{writer, seq}] = true
		}
	}
	for key := range keys {
		ops = append(ops, porcupine.Operation{
			ClientId: len(ops), Input: setInput{key: key, final: true, count: stored[key.writer][key.seq]},
			Call: int64(end) + 1, Return: int64(end) + 2, // behind, not at, what ended last
		})
	}
	return porcupine.CheckOperationsTimeout(setModel, ops, setTimeout) == porcupine.Ok
}
