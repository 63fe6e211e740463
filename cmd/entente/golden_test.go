package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files and docs/cli.md")

// golden runs commands and compares everything that they printed with a file.
func golden(t *testing.T, name string, w *world, commands ...[]string) {
	t.Helper()
	var got bytes.Buffer
	for _, args := range commands {
		out, errOut, code := w.run(t, "", args...)
		fmt.Fprintf(&got, "$ entente %s\n%s", strings.Join(args, " "), out)
		if errOut != "" {
			fmt.Fprintf(&got, "--- stderr\n%s", errOut)
		}
		fmt.Fprintf(&got, "--- exit %d\n\n", code)
	}
	compareFile(t, filepath.Join("testdata", name+".txt"), got.String())
}

// compareFile compares a text with a file, or writes it to the file.
func compareFile(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s; rewrite it with -update (-want +got)\n%s", file, diff)
	}
}

// sent compares the requests to a cluster, except those that only read.
func sent(t *testing.T, c *fakeCluster, want ...string) {
	t.Helper()
	var got []string
	for _, r := range c.requests {
		if !strings.HasPrefix(r, "Get") && !strings.HasPrefix(r, "List") {
			got = append(got, r)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests to %s (-want +got)\n%s", c.name, diff)
	}
}
