package matrix

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/entente-dev/entente/integration/e2e"
)

var update = flag.Bool("update", false, "rewrite docs/reachability.md")

func TestMain(m *testing.M) { os.Exit(new(e2e.Stage).Main(m)) }

func TestPageListsTheTestedSetups(t *testing.T) {
	const path = "../../docs/reachability.md"
	if *update {
		if err := os.WriteFile(path, []byte(Page()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(page) != Page() {
		t.Error("docs/reachability.md is out of date: `go test ./matrix -run PageLists -update` in integration writes it")
	}
	if yes := strings.Count(string(page), " yes |") - 1; yes != len(Tried()) {
		t.Errorf("the page has %d cells that work, besides the sample, and %d are tried", yes, len(Tried()))
	}
}

func TestCellsAreTheProductOfTheirDimensions(t *testing.T) {
	all := Cells()
	if want := len(directions()) * len(sources()) * len(places()) * len(destinations()) * len(places()); len(all) != want {
		t.Errorf("%d cells, want %d", len(all), want)
	}
	names := map[string]bool{}
	for _, c := range all {
		names[c.String()] = true
	}
	if len(names) != len(all) {
		t.Errorf("%d cells have %d names", len(all), len(names))
	}
	// To pods abroad everything works but names on a node; back come pods alone, by three ways.
	tried := map[Direction]int{}
	for _, c := range Tried() {
		tried[c.Direction]++
	}
	if tried[ToOffloaded] != 60-4 || tried[FromOffloaded] != 12 {
		t.Errorf("tried are %v", tried)
	}
}

func TestMatrixCoversEverySetup(t *testing.T) {
	all := Setups()
	names := map[string]bool{}
	for _, s := range all {
		names[s.String()] = true
	}
	if len(all) != 16 || len(names) != 16 {
		t.Errorf("%d setups have %d names, want 16", len(all), len(names))
	}
	if !slices.Contains(all, Sample) {
		t.Errorf("the sample %s is not among %v", Sample, all)
	}
	if d := cmp.Diff([]Family{IPv4, IPv6}, Sample.Over()); d != "" {
		t.Errorf("the sample is tried over (-want +got):\n%s", d)
	}
}
