package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

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

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func sumOf(compact []byte) string { return fmt.Sprintf("%08x", crc32.Checksum(compact, castagnoli)) }

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
		Format: fileFormat, Version: formatVersion, Sum: sumOf(body), Checkpoints: body,
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
	if err := decodeJSON(b, &c); err != nil {
		return nil, err
	}
	if c.Format != fileFormat {
		return nil, fmt.Errorf("its format is %q and not %q", c.Format, fileFormat)
	}
	if c.Version != formatVersion {
		return nil, fmt.Errorf("its version is %d and this capstan reads version %d only", c.Version, formatVersion)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, c.Checkpoints); err != nil {
		return nil, err
	}
	if sum := sumOf(compact.Bytes()); sum != c.Sum {
		return nil, fmt.Errorf("its content has the sum %s and not the %q written beside it (was it edited by hand?)", sum, c.Sum)
	}
	var list []entry
	if err := decodeJSON(c.Checkpoints, &list); err != nil {
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

// decodeJSON reads one value and refuses fields that this version does not know and bytes behind it.
func decodeJSON(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return fmt.Errorf("it is cut off after %d bytes: %w", len(b), err)
		}
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("there is more behind its end, at byte %d", d.InputOffset())
	}
	return nil
}
