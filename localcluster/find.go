package localcluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
)

// DefaultVersion is the version of mongod that scripts/get-mongod installs and that Find looks for
// in the user's cache.
const DefaultVersion = "6.0.5"

// MongodVar is the environment variable that names the mongod binary to use.
const MongodVar = "CAPSTAN_MONGOD"

// ErrNoMongod says that no mongod was found; the error that wraps it says where Find looked.
var ErrNoMongod = errors.New("no mongod found")

// Find returns the path of the mongod to run: $CAPSTAN_MONGOD, else "mongod" on PATH, else the one
// that scripts/get-mongod keeps in the user's cache (under sudo: the invoking user's). The error
// wraps ErrNoMongod and says how to get one. Find runs nothing and downloads nothing.
func Find() (string, error) {
	if p := os.Getenv(MongodVar); p != "" {
		if err := executable(p); err != nil {
			// Not silently another one: whoever names a binary wants that binary.
			return "", fmt.Errorf("%w: $%s: %w", ErrNoMongod, MongodVar, err)
		}
		return filepath.Abs(p)
	}
	if p, err := exec.LookPath("mongod"); err == nil {
		return filepath.Abs(p)
	}
	cached := cachedPaths()
	for _, p := range cached {
		if executable(p) == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("%w: not in $%s, not on PATH, not in %v; run scripts/get-mongod, "+
		"or install MongoDB 6.0 or newer, or set $%s to the path of a mongod", ErrNoMongod, MongodVar, cached, MongodVar)
}

// cachedPaths lists where scripts/get-mongod may have put a mongod, the most specific place first.
func cachedPaths() []string {
	var roots []string
	// Under sudo the cache is the invoking user's: root would download the same file again.
	if name := os.Getenv("SUDO_USER"); name != "" && name != "root" && os.Geteuid() == 0 {
		if u, err := user.Lookup(name); err == nil && u.HomeDir != "" {
			roots = append(roots, filepath.Join(u.HomeDir, ".cache"))
		}
	}
	if x := os.Getenv("XDG_CACHE_HOME"); filepath.IsAbs(x) {
		roots = append(roots, x)
	} else if h, err := os.UserHomeDir(); err == nil {
		roots = append(roots, filepath.Join(h, ".cache"))
	}
	paths := make([]string, len(roots))
	for i, r := range roots {
		paths[i] = filepath.Join(r, "capstan", "mongod", DefaultVersion, "mongod")
	}
	return paths
}

func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s is a directory", path)
	case info.Mode()&0o111 == 0:
		return fmt.Errorf("%s is not executable", path)
	}
	return nil
}
