//go:build !unix

package lockedfile

import "errors"

// TryLock needs flock: without a lock that dies with its process two consumers could not be told
// apart, so there is none rather than a bad one.
func TryLock(string) (unlock func(), err error) {
	return nil, errors.New("checkpoints in a file need a Unix system; keep them in MongoDB")
}
