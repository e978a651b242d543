package record

import (
	"unsafe"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Own returns r with Raw, and what points into it, in memory of its own. A reader decodes a document
// where it lies in the server's reply and owns only those that it keeps: one allocation per message,
// and no message that keeps a reply of up to 16 MB alive.
func (r Record) Own() Record {
	if r.Raw == nil {
		return r
	}
	raw := make(bson.Raw, len(r.Raw))
	copy(raw, r.Raw)
	if r.Change != nil {
		own, err := DecodeChange(raw, make(Interner))
		if err != nil {
			return r // it was decoded before, so this does not happen
		}
		r.Raw, r.Change = raw, own.Change
		return r
	}
	if r.Subject != "" {
		// Subject shares Raw's memory (see Decode): it stays at the same place of the copy. Where it
		// came from elsewhere, it is left alone.
		at := uintptr(unsafe.Pointer(unsafe.StringData(r.Subject))) - uintptr(unsafe.Pointer(unsafe.SliceData(r.Raw)))
		if at < uintptr(len(raw)) && at+uintptr(len(r.Subject)) <= uintptr(len(raw)) {
			r.Subject = unsafe.String(&raw[at], len(r.Subject))
		}
	}
	r.Raw = raw
	return r
}
