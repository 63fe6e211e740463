package turns

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

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

// What has to wait for a while, as it failed, is compared at once when it changes.
func TestTheShortestPauseCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := NewComparer(CompareConfig{PeerOf: func(string) peering.ClusterID { return "peer" }})
		web := types.NamespacedName{Namespace: "shop", Name: "web"}
		begin := time.Now()
		c.Later(web, time.Minute)
		c.Later(web, time.Second)
		c.Later(web, time.Hour)
		peer, _, _ := c.next()
		if took := time.Since(begin); took != time.Second {
			t.Errorf("it is compared after %s", took)
		}
		c.done(peer)
		if time.Sleep(2 * time.Hour); c.peers.Len() > 0 || !c.Idle() {
			t.Error("it is compared again though nothing changed")
		}
	})
}
