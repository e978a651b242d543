package localcluster

import (
	"errors"
	"os"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// client connects to the cluster's URI with a majority write concern.
func client(t *testing.T, uri string) *mongo.Client {
	t.Helper()
	cl, err := mongo.Connect(options.Client().ApplyURI(uri).SetWriteConcern(writeconcern.Majority()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cl.Disconnect(t.Context()) })
	return cl
}

func insert(t *testing.T, uri string, id any) {
	t.Helper()
	if _, err := client(t, uri).Database("d").Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}}); err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, uri string) int64 {
	t.Helper()
	n, err := client(t, uri).Database("d").Collection("c").CountDocuments(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAStandaloneServerIsWritableWhenStartReturnsAndGoneAfterDown(t *testing.T) {
	c := start(t, Config{})
	insert(t, c.URI(), 1)
	m := c.Status(t.Context())[0]
	if m.Role != RoleStandalone || !m.Running() || m.Frozen {
		t.Errorf("member is %+v", m)
	}
	down(t, c)
	if _, err := os.Stat(c.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary directory is still there: %v", err)
	}
	if processServes(m.PID, m.dbpath()) {
		t.Error("the server still runs")
	}
	<-c.Done()
	down(t, c) // a second time: nothing happens
}

func TestAReplicaSetHasFastElectionsFromItsFirstConfiguration(t *testing.T) {
	c := start(t, Config{Members: 3})
	admin := client(t, c.URI()).Database("admin")
	var reply struct {
		Config struct {
			Version  int `bson:"version"`
			Settings struct {
				Election  int `bson:"electionTimeoutMillis"`
				Heartbeat int `bson:"heartbeatIntervalMillis"`
			} `bson:"settings"`
		} `bson:"config"`
	}
	if err := admin.RunCommand(t.Context(), bson.D{{Key: "replSetGetConfig", Value: 1}}).Decode(&reply); err != nil {
		t.Fatal(err)
	}
	if s := reply.Config.Settings; reply.Config.Version != 1 || s.Election != 1000 || s.Heartbeat != 250 {
		t.Errorf("configuration %+v", reply.Config)
	}
	var params bson.M
	if err := admin.RunCommand(t.Context(), bson.D{{Key: "getParameter", Value: 1},
		{Key: "oplogNetworkTimeoutBufferSeconds", Value: 1}, {Key: "oplogFetcherSteadyStateMaxFetcherRestarts", Value: 1}}).Decode(&params); err != nil {
		t.Fatal(err)
	}
	if params["oplogNetworkTimeoutBufferSeconds"] != int32(1) || params["oplogFetcherSteadyStateMaxFetcherRestarts"] != int32(0) {
		t.Errorf("parameters %v", params)
	}
	roles := map[string]int{}
	for _, m := range c.Status(t.Context()) {
		roles[m.Role]++
	}
	if roles[RolePrimary] != 1 || roles[RoleSecondary] != 2 {
		t.Errorf("roles %v", roles)
	}
	names, err := client(t, c.URI()).ListDatabaseNames(t.Context(), bson.D{})
	if err != nil || len(names) != 3 { // admin, config, local
		t.Errorf("databases %v, %v: starting must leave none behind", names, err)
	}
}

func TestServerDefaultsKeepMongoDBsOwnTiming(t *testing.T) {
	st := freshState(Config{Members: 3, ServerDefaults: true})
	st.ExtraArgs = []string{"--setParameter", "enableTestCommands=1"}
	args := st.args("/d", Member{Name: "m0", Dir: "/d/m0"}, "", 20000)
	for _, a := range args[:len(args)-2] {
		if a == "--setParameter" {
			t.Errorf("arguments %q", args)
		}
	}
	if args[len(args)-1] != "enableTestCommands=1" {
		t.Errorf("extra arguments are missing in %q", args)
	}
}
