package lockedfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Sum returns the CRC-32C of JSON without white space, in hex. A file that carries the sum of its body shows a changed byte that is
// still JSON.
func Sum(compact []byte) string { return fmt.Sprintf("%08x", crc32.Checksum(compact, castagnoli)) }

// Check returns an error if a body has another sum than the one written beside it.
func Check(body json.RawMessage, written string) error {
	var compact bytes.Buffer
	if err := json.Compact(&compact, body); err != nil {
		return err
	}
	if sum := Sum(compact.Bytes()); sum != written {
		return fmt.Errorf("its content has the sum %s and not the %q written beside it (was it edited by hand?)", sum, written)
	}
	return nil
}

// Decode reads one JSON value and refuses fields that this version does not know and bytes behind it.
func Decode(b []byte, v any) error {
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
