//go:build !unix

package checkpoint

import "errors"

// tryLock needs flock: without a lock that dies with its process two consumers could not be told
// apart, so there is none rather than a bad one.
func tryLock(string) (unlock func(), err error) {
	return nil, errors.New("file checkpoints need a Unix system; use the store in MongoDB")
}
