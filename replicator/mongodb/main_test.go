package mongodb_test

import (
	"testing"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

func TestMain(m *testing.M) { mongotest.Main(m) }
