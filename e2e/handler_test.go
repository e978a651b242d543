package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/seed-12ef14e5/capstan/internal/history"
)

// The test binary is the handler child of `capstan consume --exec` when handlerEnv is set: a URI, a
// database and a folder in three variables, as --exec takes a command without arguments of its own.
const (
	handlerEnv    = "CAPSTAN_E2E_HANDLER"
	handlerDBEnv  = "CAPSTAN_E2E_DB"
	handlerDirEnv = "CAPSTAN_E2E_DIR"
	// handlerReader is the reader's name in the event files, handlerColl where the effects are stored.
	handlerReader = "handler"
	handlerColl   = "effects"
)

// handlerMain reads a message a line, stores its effect under the message's _id, and acknowledges
// by a line. It takes as many lines at once as are there. What it does is in a file of its own
// before it answers, so that the test knows it whoever is killed.
func handlerMain(stdin io.Reader, stdout, stderr io.Writer) int {
	if err := handle(context.Background(), stdin, stdout); err != nil {
		_, _ = fmt.Fprintln(stderr, "handler:", err)
		return 1
	}
	return 0
}

func handle(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	name := fmt.Sprintf("%020d-%d.ndjson", time.Now().UnixNano(), os.Getpid()) // sorts by start
	events, err := history.OpenFile(filepath.Join(os.Getenv(handlerDirEnv), name))
	if err != nil {
		return err
	}
	defer events.Close()
	reader := events.Reader(handlerReader)
	reader.Resumed()
	client, err := mongo.Connect(options.Client().ApplyURI(os.Getenv(handlerEnv)).SetWriteConcern(writeconcern.Majority()))
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(ctx) }()
	effects := client.Database(os.Getenv(handlerDBEnv)).Collection(handlerColl)

	lines := make(chan []byte, 1000)
	go func() {
		defer close(lines)
		in := bufio.NewReader(stdin)
		for {
			line, err := in.ReadBytes('\n')
			if err != nil {
				return // half a line is what a killed consumer leaves
			}
			lines <- line
		}
	}()
	for line := range lines {
		batch := [][]byte{line}
		for more := true; more && len(batch) < cap(lines); {
			select {
			case line, ok := <-lines:
				if more = ok; ok {
					batch = append(batch, line)
				}
			default:
				more = false
			}
		}
		if err := handleBatch(ctx, effects, reader, stdout, batch); err != nil {
			return err
		}
	}
	return nil
}

func handleBatch(ctx context.Context, effects *mongo.Collection, reader *history.Reader, stdout io.Writer, batch [][]byte) error {
	var ids []string
	var writes []mongo.WriteModel
	for _, line := range batch {
		var m struct {
			ID struct {
				OID string `json:"$oid"`
			} `json:"_id"`
			Data json.RawMessage `json:"data"`
		}
		if err := json.Unmarshal(line, &m); err != nil || m.ID.OID == "" {
			return fmt.Errorf("line %q: %w", line, err)
		}
		reader.Delivered(history.Key{Src: m.ID.OID, Seq: 1})
		ids = append(ids, m.ID.OID)
		writes = append(writes, mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: "_id", Value: m.ID.OID}}).
			SetUpdate(bson.D{{Key: "$setOnInsert", Value: bson.D{{Key: "data", Value: string(m.Data)}}}}).SetUpsert(true))
	}
	// Idempotent, so the simplest loop is right: again until a majority has it.
	end := time.Now().Add(patience)
	for {
		attempt, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, err := effects.BulkWrite(attempt, writes, options.BulkWrite().SetOrdered(false))
		cancel()
		if err == nil {
			break
		}
		if time.Now().After(end) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	out := bufio.NewWriter(stdout)
	for _, id := range ids {
		reader.Handled(history.Key{Src: id, Seq: 1})
		_, _ = fmt.Fprintln(out, "ok") // kept by out until Flush
	}
	return out.Flush()
}
