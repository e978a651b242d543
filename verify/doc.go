// Package verify compares two deployments of MongoDB: which collections are there, their options and indexes, their
// documents byte for byte, and the order of capped collections.
//
// It promises that every document of the source's scope is compared with the target's document of the same _id, and that
// every other document of the target is found; it says which differ. It holds no more than a few windows of documents and
// a bounded number of ids in memory, whatever the size, goes on where it was after a crash, and may run while documents
// change and a route follows: what differs is looked at again until it is equal, or has differed for long enough.
//
// It only reads. It does not promise one moment in time: two deployments have none in common.
package verify
