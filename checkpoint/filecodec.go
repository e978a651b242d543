package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/seed-12ef14e5/capstan/internal/lockedfile"
	"github.com/seed-12ef14e5/capstan/record"
)

// fileFormat is the first field of a checkpoint file: a file without it is somebody else's and is
// never overwritten.
const fileFormat = "capstan checkpoints"

// fileContent is the JSON document in a checkpoint file. Sum guards against a changed byte that is
// still JSON: a damaged seq would skip messages without a word.
type fileContent struct {
	Format      string          `json:"format"`
	Version     int             `json:"version"`
	Sum         string          `json:"sum"` // CRC-32C of Checkpoints without white space, in hex
	Checkpoints json.RawMessage `json:"checkpoints"`
}

func encodeFile(entries map[string]record.Checkpoint) ([]byte, error) {
	list := make([]entry, 0, len(entries))
	for _, cp := range sorted(entries) {
		list = append(list, entryOf(cp))
	}
	body, err := json.Marshal(list)
	if err != nil {
		return nil, fmt.Errorf("encode checkpoints: %w", err)
	}
	b, err := json.MarshalIndent(fileContent{
		Format: fileFormat, Version: formatVersion, Sum: lockedfile.Sum(body), Checkpoints: body,
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode checkpoints: %w", err)
	}
	return append(b, '\n'), nil
}

func decodeFile(b []byte) (map[string]record.Checkpoint, error) {
	if len(b) == 0 {
		return nil, errors.New("it is empty")
	}
	var c fileContent
	if err := lockedfile.Decode(b, &c); err != nil {
		return nil, err
	}
	if c.Format != fileFormat {
		return nil, fmt.Errorf("its format is %q and not %q", c.Format, fileFormat)
	}
	if c.Version != formatVersion {
		return nil, fmt.Errorf("its version is %d and this capstan reads version %d only", c.Version, formatVersion)
	}
	if err := lockedfile.Check(c.Checkpoints, c.Sum); err != nil {
		return nil, err
	}
	var list []entry
	if err := lockedfile.Decode(c.Checkpoints, &list); err != nil {
		return nil, err
	}
	entries := make(map[string]record.Checkpoint, len(list))
	for _, e := range list {
		if _, twice := entries[e.Name]; twice {
			return nil, fmt.Errorf("%w: %q", errTwoEntries, e.Name)
		}
		cp, err := e.checkpoint()
		if err != nil {
			return nil, err
		}
		entries[e.Name] = cp
	}
	return entries, nil
}
