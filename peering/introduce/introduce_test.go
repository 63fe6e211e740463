package introduce

import (
	"crypto/rand"
	"strings"
	"testing"

	"github.com/entente-dev/entente/peering"
)

// The numbers were computed from the text of trust.proto by other means.
func TestIntroductionCode(t *testing.T) {
	a, b := peering.ClusterID(strings.Repeat("a", peering.ClusterIDLen)), peering.ClusterID(strings.Repeat("b", peering.ClusterIDLen))
	nonceA, nonceB := [32]byte{1}, [32]byte{1}
	if got, want := Commitment(a, nonceA).String(), "360d917ecc52e7c6ec54783ade37b23f3edf636766f67218b9387316142afdf6"; got != want {
		t.Errorf("commitment %s, want %s", got, want)
	}
	if got := Code(a, nonceA, b, nonceB); got != "078860" {
		t.Errorf("code %s", got)
	}
	if Code(a, nonceA, b, nonceB) == Code(b, nonceB, a, nonceA) {
		t.Error("the code does not depend on which cluster introduced itself")
	}
	seen := map[string]bool{}
	for i := range 200 {
		var nonce [32]byte
		if _, err := rand.Read(nonce[:]); err != nil {
			t.Fatal(err)
		}
		c := Code(a, nonce, b, nonceB)
		if len(c) != 6 {
			t.Fatalf("code %q", c)
		}
		seen[c] = true
		if Commitment(a, nonce) == Commitment(b, nonce) || Commitment(a, nonce) == Commitment(a, nonceA) {
			t.Fatal("two commitments are one", i)
		}
	}
	if len(seen) < 195 {
		t.Errorf("%d codes of 200", len(seen))
	}
}
