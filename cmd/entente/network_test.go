package main

import "testing"

// TestConnectAsksForATunnelAlone: and adds it to an existing request without one, changing nothing else.
func TestConnectAsksForATunnelAlone(t *testing.T) {
	w := newWorld()
	w.joined = true
	golden(t, "network-connect", w,
		[]string{"network", "connect", "provider", "--dry-run"}, []string{"network", "connect", "provider"}, []string{"network", "connect", "provider"},
		[]string{"network", "disconnect", "provider", "--dry-run"}, []string{"network", "disconnect", "provider"},
	)
	const ask = "CreatePeering peers/provider : pods 0 for 0s at most any price no-network=false no-renewal=false nodes= peers= storage=[] runtime=[] id="
	sent(t, w.consumer, ask, ask, "DeletePeering peerings/provider")

	w = peered()
	w.noNetwork = true
	golden(t, "network-connect-amend", w, []string{"network", "connect", "provider", "--dry-run"}, []string{"network", "connect", "provider"})
	const amend = "UpdatePeering peerings/provider [no_network]: nothing for 0s at most any price no-renewal=false"
	sent(t, w.consumer, amend, amend)
}

// TestDisconnectKeepsTheRestOfTheContract: resources stay, and pods are not cut off by accident.
func TestDisconnectKeepsTheRestOfTheContract(t *testing.T) {
	w := peered()
	golden(t, "network-disconnect", w, []string{"network", "disconnect", "provider"},
		[]string{"network", "disconnect", "provider", "--force", "--dry-run"}, []string{"network", "disconnect", "provider", "--force"}, []string{"network", "disconnect", "provider"}, []string{"network", "disconnect", "nobody"}, []string{"network", "disconnect"},
	)

	w = peered()
	w.provides = true
	golden(t, "network-disconnect-provider", w, []string{"network", "disconnect", "consumer"})

	w = newWorld()
	w.joined, w.refuse = true, "the provider's policy \"default\" allows no tunnel"
	golden(t, "network-connect-refused", w, []string{"network", "connect", "provider"})
	w = newWorld()
	w.joined, w.stuck = true, "Network"
	golden(t, "network-connect-stuck", w, []string{"network", "connect", "provider"})
}

// TestRotateWaitsForNewKeys: and says what for, if that takes too long.
func TestRotateWaitsForNewKeys(t *testing.T) {
	w := peered()
	golden(t, "network-rotate", w,
		[]string{"network", "rotate", "provider", "--no-wait"}, []string{"network", "rotate", "provider"}, []string{"network", "rotate"}, []string{"info", "peer", "provider", "--get", "tunnel.presharedKey", "-o", "yaml"})
	sent(t, w.consumer, "RotatePresharedKey peers/provider", "RotatePresharedKey peers/provider", "RotatePresharedKey peers/-")
	w = peered()
	w.keyWaits = "all gateways of the peer to have the next key"
	golden(t, "network-rotate-stuck", w, []string{"network", "rotate", "provider", "--timeout", "10s"}, []string{"info", "peer", "provider"})
	w = peered()
	golden(t, "network-rotate-nodes", w,
		[]string{"network", "rotate", "--nodes"}, []string{"network", "rotate", "--node", "w1"}, []string{"network", "rotate", "provider", "--nodes"})
	sent(t, w.consumer, "RotateNodeKeys", "RotateNodeKeys w1")
	w = peered()
	w.keyWaits = "node p1 of cluster ppp does not know the next key yet"
	golden(t, "network-rotate-nodes-stuck", w, []string{"network", "rotate", "--nodes", "--timeout", "10s"}, []string{"network", "status", "-o", "wide"})
	golden(t, "network-rotate-none", newWorld(), []string{"network", "rotate"})
}
