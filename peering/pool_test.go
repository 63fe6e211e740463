package peering

import (
	"strings"
	"testing"
)

// A contract of no pool is written as before there were any.
func TestTermsNameAPoolIfThereIsOne(t *testing.T) {
	t.Parallel()
	terms := testTerms(t, newCluster(t), newCluster(t))
	without, err := terms.Marshal()
	if err != nil || strings.Contains(string(without), `"pool"`) {
		t.Errorf("written as %s, %v", without, err)
	}
	terms.Pool = "gpu"
	payload, err := terms.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	const want = `"podSecurity":"baseline","pool":"gpu","previousHash"`
	if !strings.Contains(string(payload), want) {
		t.Errorf("written as %s", payload)
	}
	got, err := ParseTerms(payload)
	if err != nil || got.Pool != "gpu" {
		t.Errorf("read as pool %q, %v", got.Pool, err)
	}
	for _, other := range []string{`"pool":""`, `"pool":"GPU"`, `"pool":null`, `"pool":["gpu"]`} {
		if _, err := ParseTerms([]byte(strings.Replace(string(payload), `"pool":"gpu"`, other, 1))); err == nil {
			t.Errorf("%s was read", other)
		}
	}
}
