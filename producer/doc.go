// Package producer writes messages to a stream: it gives each one its _id, its time and its number,
// groups what arrives while an insert is in flight into the next insert, and reports what became of
// every message.
//
// It promises:
//   - order: messages are stored in the order in which Send accepted them (I4);
//   - numbers without false holes: seq is 1, 2, 3 … per src, and a message that the server refuses for
//     good hands its number to the next one;
//   - one result per accepted message, whatever happens: nothing is dropped silently.
//
// It does not promise that an accepted message is stored: only Result.Err == nil says so. Whether an
// acknowledged message survives an election, and is stored once, is the Writer's promise (package
// failover). What is still buffered when the process is killed is lost, and was never acknowledged.
package producer
