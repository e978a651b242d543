package stream

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
)

// Prime inserts the primer, the document that keeps a tailable cursor alive on an otherwise empty stream
// (the server ends one on an empty collection at once). It does so only while the stream is empty and
// only if capstan created it: info comes from Ensure, Lookup or List, and Info.Ours decides. Two primers
// at once collide on their _id, and the collision is success. Should a message come between the look and
// the insert, the primer stands behind it, where it does no harm: it is never delivered.
//
// The insert is bound to info.UUID and committed by a majority. It blocks for DefaultTimeout at most. It
// returns nil if the stream is not empty afterwards. Errors: ErrNotOurs for an empty collection of someone
// else's; ErrGone if there is no collection of that UUID under the name any more; *PrivilegeError for a
// user who may not insert; and what the server or the driver says.
func Prime(ctx context.Context, db *mongo.Database, info Info) error {
	db = onPrimary(db)
	_, err := again(ctx, DefaultTimeout, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, prime(ctx, db, info)
	})
	return err
}

func prime(ctx context.Context, db *mongo.Database, info Info) error {
	name := info.collection(db)
	_, err := db.Collection(name).FindOne(ctx, bson.D{}, options.FindOne().SetProjection(bson.D{{Key: "_id", Value: 1}})).Raw()
	switch {
	case err == nil:
		return nil
	case mongoerr.IsUnauthorized(err):
		return &PrivilegeError{Action: "find", Resource: info.Namespace, Err: err}
	case !errors.Is(err, mongo.ErrNoDocuments):
		return fmt.Errorf("look whether %s is empty: %w", info.Namespace, err)
	case !info.Ours:
		return fmt.Errorf("%s: %w", info.Namespace, ErrNotOurs)
	}
	err = db.RunCommand(ctx, bson.D{
		{Key: "insert", Value: name},
		{Key: "documents", Value: bson.A{bson.D{{Key: record.FieldID, Value: record.PrimerID}, {Key: record.FieldTime, Value: int64(0)}}}},
		{Key: "collectionUUID", Value: info.UUID}, // else an insert after a drop would create a collection that is not capped
		{Key: "writeConcern", Value: majority(ctx)},
	}).Err()
	switch {
	case err == nil:
		return nil
	case mongoerr.IsDuplicateID(err) && !mongoerr.Classify(err).Uncommitted:
		return nil // another process primed it, and that is committed
	case mongoerr.IsUUIDMismatch(err) || mongoerr.IsNotFound(err):
		return fmt.Errorf("prime %s: %w: %w", info.Namespace, ErrGone, err)
	case mongoerr.IsUnauthorized(err):
		return &PrivilegeError{Action: "insert", Resource: info.Namespace, Err: err}
	}
	return fmt.Errorf("prime %s: %w", info.Namespace, err)
}
