package turns

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/entente-dev/entente/peering"
)

// A peer with many namespaces to compare does not delay one with few.
func TestComparerTakesPeersInTurn(t *testing.T) {
	t.Parallel()
	const many, few = peering.ClusterID("many"), peering.ClusterID("few")
	c := NewComparer(CompareConfig{PeerOf: func(namespace string) peering.ClusterID {
		if namespace == "few" {
			return few
		}
		return many
	}})
	for n := range 100 {
		c.Now(types.NamespacedName{Namespace: fmt.Sprint("many-", n)})
	}
	web := types.NamespacedName{Namespace: "few", Name: "web"}
	c.Now(web)
	c.Now(web)
	first, _, _ := c.next()
	second, key, _ := c.next()
	if first != many || second != few || key != web {
		t.Errorf("first %s, then %s of %s", first, key, second)
	}
	if n := c.peers.Len(); n > 0 {
		t.Errorf("a namespace of %d peers can be compared though both are busy", n)
	}
	c.done(few)
	if n := c.peers.Len(); n > 0 {
		t.Error("a namespace is compared twice")
	}
	c.done(many)
	if peer, _, _ := c.next(); peer != many {
		t.Errorf("next is %q", peer)
	}
}
