package firewall

import "testing"

func TestDropsAreReadAsTheyAreWritten(t *testing.T) {
	for _, d := range []Drop{{NotExposed, ""}, {NotFromPod, ""}, {NotOurs, "abc"}, {NoAlias, "abc"}, {NotHere, "abc"}, {InClear, ""}, {Transit, ""}, {ToOverlay, ""}, {FromNetwork, ""}, {ToRelay, ""}} {
		if got, ok := parseDrop(d.String()); !ok || got != d {
			t.Errorf("%q is read as %+v, %t", d, got, ok)
		}
	}
	for _, text := range []string{"", "peer ", "peer a", "peer a b", "to peers", "peer not exposed", "peer : x"} {
		if got, ok := parseDrop(text); ok {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}
