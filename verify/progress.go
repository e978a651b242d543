package verify

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/scope"
)

// saveEvery is the least time between two savings, saveShare the most of the time that savings may take: one in so many.
const (
	saveEvery = time.Second
	saveShare = 20
)

// ProgressError says that Config.Progress is the file of another comparison.
type ProgressError struct {
	Path   string
	Reason string
}

func (e *ProgressError) Error() string {
	return fmt.Sprintf("verify: %s is the progress of another comparison (%s): name another file, or remove it to begin anew", e.Path, e.Reason)
}

// progressFile keeps how far a run is. It is written whole, beside the old one, and then takes its place.
type progressFile struct {
	path        string
	fingerprint string

	// Guarded by run.mu.
	saved time.Time
	took  time.Duration
}

// progress is the content of the file.
type progress struct {
	Version     int             `json:"version"`
	Fingerprint string          `json:"fingerprint"`
	Seconds     float64         `json:"seconds"`
	Pairs       []savedProgress `json:"namespaces"`
}

const progressVersion = 1

type savedProgress struct {
	// Source and Target tell collections apart that have the same name: by UUID.
	Source string      `json:"source_uuid"`
	Target string      `json:"target_uuid"`
	Report Namespace   `json:"report"`
	Spans  []savedSpan `json:"ranges"`
	// Pending are the _ids that have no verdict yet.
	Pending []savedValue `json:"pending,omitempty"`
	Done    bool         `json:"done"`
}

type savedSpan struct {
	Next savedValue `json:"next"`
	Hi   savedValue `json:"hi"`
	Done bool       `json:"done,omitempty"`
}

// savedValue is a BSON value, byte for byte; type 0 is none.
type savedValue struct {
	Type  byte   `json:"t,omitempty"`
	Value []byte `json:"v,omitempty"`
}

func save(v bson.RawValue) savedValue { return savedValue{byte(v.Type), v.Value} }

func (s savedValue) value() bson.RawValue {
	return bson.RawValue{Type: bson.Type(s.Type), Value: s.Value}
}

// fingerprint identifies what is compared, and how.
func (r *run) fingerprint(ctx context.Context, set *scope.Set) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%s %v %v %v\n", set.Fingerprint(), r.cfg.NoIndexes, r.cfg.StrictTTL, r.cfg.NewTimestamps)
	for _, s := range []*side{r.source, r.target} {
		raw, err := s.run(ctx, record.Namespace{DB: "admin"}, bson.D{{Key: "hello", Value: 1}})
		if err != nil {
			return "", err
		}
		name, _ := raw.Lookup("setName").StringValueOK()
		fmt.Fprintf(h, "%q\n", name)
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// open reads the progress of an earlier run, if there is one, and takes it over for every pair whose collections are still the
// same ones. Options and indexes have been compared anew.
func (r *run) open(ctx context.Context, set *scope.Set) error {
	if r.cfg.Progress == "" {
		return nil
	}
	print, err := r.fingerprint(ctx, set)
	if err != nil {
		return err
	}
	r.file = &progressFile{path: r.cfg.Progress, fingerprint: print, saved: time.Now()}
	data, err := os.ReadFile(r.file.path)
	if errors.Is(err, fs.ErrNotExist) {
		return r.save(true) // a folder that is missing is said now, and not in an hour
	}
	if err != nil {
		return fmt.Errorf("verify: progress: %w", err)
	}
	var p progress
	if err := json.Unmarshal(data, &p); err != nil || p.Version != progressVersion {
		return &ProgressError{r.file.path, "it is no file of this version of verify"}
	}
	if p.Fingerprint != print {
		return &ProgressError{r.file.path, "with another scope, other options or another deployment"}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resume, r.before = true, p.Seconds
	for _, old := range p.Pairs {
		for _, now := range r.pairs {
			if now.source.ns == old.Report.Source && now.target.ns == old.Report.Target &&
				now.source.uuid == old.Source && now.target.uuid == old.Target {
				r.takeOver(now, old)
			}
		}
	}
	return nil
}

// takeOver goes on where an earlier run was with a pair. r.mu is held.
func (r *run) takeOver(p *pair, old savedProgress) {
	if !old.Done && (p.capped() || !p.sameOrder()) {
		return // there is no place to begin in the middle
	}
	old.Report.Findings = p.state.report.Findings
	p.state.report, p.state.done = old.Report, old.Done
	for _, s := range old.Spans {
		p.state.spans = append(p.state.spans, &span{s.Next.value(), s.Hi.value(), s.Done})
	}
	for _, d := range old.Report.Differences {
		r.listed++
		if d.Paths != nil {
			r.diffs++
		}
	}
	for _, v := range old.Pending {
		id := v.value()
		r.suspect(newSuspect(p, canonical(id), id, 0))
	}
}

// save writes the progress, if it is time or if now is set.
func (r *run) save(now bool) error {
	f := r.file
	if f == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	begin := time.Now()
	if !now && begin.Sub(f.saved) < max(saveEvery, saveShare*f.took) {
		return nil
	}
	p := progress{Version: progressVersion, Fingerprint: f.fingerprint, Seconds: r.before + time.Since(r.begin).Seconds()}
	pending := make(map[*pair][]savedValue)
	for s := range r.all {
		pending[s.p] = append(pending[s.p], save(s.id))
	}
	for _, one := range r.pairs {
		s := savedProgress{Source: one.source.uuid, Target: one.target.uuid, Report: one.state.report, Done: one.state.done, Pending: pending[one]}
		for _, sp := range one.state.spans {
			s.Spans = append(s.Spans, savedSpan{save(sp.next), save(sp.hi), sp.done})
		}
		p.Pairs = append(p.Pairs, s)
	}
	if err := f.write(p); err != nil {
		return fmt.Errorf("verify: progress: %w", err)
	}
	f.saved, f.took = time.Now(), time.Since(begin)
	return nil
}

func (f *progressFile) write(p progress) (err error) {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(p); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(f.path), filepath.Base(f.path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp.Name()))
		}
	}()
	_, err = tmp.Write(b.Bytes())
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), f.path)
}

// remove deletes the file of a run that has ended by itself.
func (f *progressFile) remove() error {
	if f == nil {
		return nil
	}
	if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("verify: progress: %w", err)
	}
	return nil
}
