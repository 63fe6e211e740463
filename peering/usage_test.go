package peering_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/peeringtest"
)

var usage = peeringtest.Usage

func TestUnitSecondsHaveOneForm(t *testing.T) {
	const most = "340282366920938463463374607431768.211455"
	for _, s := range []string{"0", "1", "0.000001", "3600.5", "100", most} {
		u, err := peering.ParseUnitSeconds(s)
		if err != nil || u.String() != s {
			t.Errorf("%q became %q, %v", s, u, err)
		}
	}
	for _, s := range []string{
		"", ".", "1.", ".5", "1.50", "01", "-1", "+1", "1e3", " 1", "0.0000001", "1.2.3", "1,5", "NaN",
		"340282366920938463463374607431768.211456", strings.Repeat("9", peering.MaxUnitSecondsLen), strings.Repeat("9", 100),
	} {
		if u, err := peering.ParseUnitSeconds(s); err == nil {
			t.Errorf("%q was read as %s", s, u)
		}
	}
	u, err := peering.ParseUnitSeconds(most)
	if err != nil {
		t.Fatal(err)
	}
	if u.Add(u).String() != most {
		t.Error("a sum went round")
	}
}

func TestParseUsage(t *testing.T) {
	many := map[string]string{}
	for i := range peering.MaxResources + 1 {
		many[fmt.Sprintf("r%d", i)] = "1"
	}
	for name, m := range map[string]map[string]string{
		"a resource of no name":  {"": "1"},
		"a resource with spaces": {"c p u": "1"},
		"no amount":              {"cpu": ""},
		"nothing":                {"cpu": "0"},
		"an amount in hours":     {"cpu": "1h"},
		"too many":               many,
	} {
		if u, err := peering.ParseUsage(m); err == nil {
			t.Errorf("%s: read as %v", name, u)
		}
	}
	want := map[string]string{"cpu": "0.000001", "memory": "3865470566400"}
	u, err := peering.ParseUsage(want)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, u.Strings()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestUsageForPeople(t *testing.T) {
	u := usage(t, "cpu", "5400", "memory", "7730941132800", "pods", "1", "nvidia.com/gpu", "1.8")
	if diff := cmp.Diff(map[string]string{"cpu": "1.5", "memory": "2", "pods": "0", "nvidia.com/gpu": "0"}, u.Hours()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzParseUnitSeconds(f *testing.F) {
	for _, s := range []string{"0", "1", "0.000001", "3600.5", "340282366920938463463374607431768.211455", "1.50", "1e9", "-1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := peering.ParseUnitSeconds(s)
		if err == nil && u.String() != s {
			t.Fatalf("%q was read as %s", s, u)
		}
	})
}
