package fabric

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/tunnel/plan"
)

// A node keeps what its fabric does in two files, so that it does so again after a restart before
// it has reached the API server: "plan" is what the API server said last, "key" the node's own
// WireGuard key. Each begins with a line
//
//	entente-node-state VERSION SHA-256 of the rest, in hex
//
// and the rest is JSON. Both hold secrets.

const (
	stateMagic   = "entente-node-state"
	stateVersion = "1"
)

// owner is whose state a file has: a node of one cluster in one install. Another node's, or that of
// the cluster that this node was in before, is of no use.
type owner struct {
	Node    string `json:"node"`
	NodeUID string `json:"nodeUID"`
	// Account is the UID of the fabric's service account: each install makes one.
	Account string `json:"account"`
}

// ownerOf reads a service account's token, which the kubelet put there: nobody is to be convinced by
// it here, so its signature does not matter.
func ownerOf(token, node string) (owner, error) {
	parts := strings.Split(strings.TrimSpace(token), ".")
	if len(parts) != 3 {
		return owner{}, errors.New("the service account's token is malformed")
	}
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return owner{}, errors.New("the service account's token is malformed") // not with a part of it
	}
	type named struct{ Name, UID string }
	var claims struct {
		Kubernetes struct {
			Node           named
			ServiceAccount named
		} `json:"kubernetes.io"`
	}
	if json.Unmarshal(body, &claims) != nil {
		return owner{}, errors.New("the service account's token is malformed")
	}
	k := claims.Kubernetes
	switch {
	case k.Node.UID == "" || k.ServiceAccount.UID == "":
		return owner{}, errors.New("the service account's token names no node, or no account: it has to be a bound one")
	case k.Node.Name != node:
		return owner{}, fmt.Errorf("the service account's token is that of node %q, and this is %q", k.Node.Name, node)
	}
	return owner{Node: node, NodeUID: k.Node.UID, Account: k.ServiceAccount.UID}, nil
}

// encodeState is a file of somebody's.
func encodeState(of owner, value any) ([]byte, error) {
	body, err := json.Marshal(struct {
		Of    owner `json:"of"`
		Value any   `json:"value"`
	}{of, value})
	if err != nil {
		return nil, fmt.Errorf("encode the node's state: %w", err)
	}
	out := seal(body)
	if len(out) > maxState {
		return nil, fmt.Errorf("the node's state has %d bytes, the limit is %d (maxState)", len(out), maxState)
	}
	return out, nil
}

// seal puts the first line before a body.
func seal(body []byte) []byte {
	sum := sha256.Sum256(body)
	return append([]byte(stateMagic+" "+stateVersion+" "+hex.EncodeToString(sum[:])+"\n"), body...)
}

// decodeState reads a file. Its errors repeat nothing of what is in it.
func decodeState(b []byte, of owner, value any) error {
	if len(b) > maxState {
		return fmt.Errorf("it has more than %d bytes (maxState)", maxState)
	}
	head, body, ok := bytes.Cut(b, []byte("\n"))
	words := strings.Split(string(head), " ")
	if !ok || len(words) != 3 || words[0] != stateMagic {
		return errors.New("malformed or truncated state file")
	}
	if words[1] != stateVersion {
		return errors.New("it is of another version of Entente, that of this one is " + stateVersion)
	}
	if sum := sha256.Sum256(body); words[2] != hex.EncodeToString(sum[:]) {
		return errors.New("it is damaged: its checksum is wrong")
	}
	var envelope struct {
		Of    owner           `json:"of"`
		Value json.RawMessage `json:"value"`
	}
	if json.Unmarshal(body, &envelope) != nil {
		return errors.New("it is damaged: not JSON")
	}
	if envelope.Of != of {
		return errors.New("it is that of another node, cluster or install")
	}
	if len(envelope.Value) == 0 || json.Unmarshal(envelope.Value, value) != nil {
		return errors.New("it is damaged: cannot decode the value")
	}
	return nil
}

// savedPlan is what the API server said last. Nothing else decides about what the fabric of a node
// does, but the node's own routes and what probes say.
type savedPlan struct {
	// Confirmed is when the API server last answered.
	Confirmed   time.Time             `json:"confirmed"`
	Node        corev1.Node           `json:"node"`
	FabricNodes []v1alpha1.FabricNode `json:"fabricNodes"`
	Tunnels     []v1alpha1.Tunnel     `json:"tunnels"`
	// Keys is the preshared keys by the UID of their tunnel, Gateways as in [Known].
	Keys     map[types.UID]savedKeys `json:"keys"`
	Gateways []string                `json:"gateways"`
}

// savedKeys is TunnelKeys that can be read back. It prints as nothing.
type savedKeys struct {
	Number                  uint64
	Current, Next, Previous []byte
}

// Format hides the keys.
func (savedKeys) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte("[redacted]")) }

// LogValue hides the keys.
func (savedKeys) LogValue() slog.Value { return slog.StringValue("[redacted]") }

// newSavedPlan is what a fabric was told, without all that it does not need for what it does.
// Keys of nodes are not replaced by what was saved: others would not hear of the next ones.
func newSavedPlan(confirmed time.Time, own *corev1.Node, nodes []v1alpha1.FabricNode, tunnels []v1alpha1.Tunnel, known Known) *savedPlan {
	s := &savedPlan{Confirmed: confirmed.UTC().Round(0), Keys: map[types.UID]savedKeys{}, Gateways: known.Gateways}
	s.Node.Name, s.Node.Spec.PodCIDRs, s.Node.Status.Addresses = own.Name, own.Spec.PodCIDRs, own.Status.Addresses
	for i := range nodes {
		n := &nodes[i]
		kept := v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
		kept.Spec.ClusterID, kept.Spec.Gateway, kept.Spec.Pods = n.Spec.ClusterID, n.Spec.Gateway, n.Spec.Pods
		kept.Status.PublicKey, kept.Status.NextPublicKey = n.Status.PublicKey, n.Status.NextPublicKey
		kept.Status.Endpoints, kept.Status.PodCIDRs = n.Status.Endpoints, n.Status.PodCIDRs
		s.FabricNodes = append(s.FabricNodes, kept)
	}
	for i := range tunnels {
		t := &tunnels[i]
		s.Tunnels = append(s.Tunnels, v1alpha1.Tunnel{
			ObjectMeta: metav1.ObjectMeta{Name: t.Name, UID: t.UID, CreationTimestamp: t.CreationTimestamp}, Spec: t.Spec,
		})
		if k, ok := known.Keys[t.UID]; ok {
			s.Keys[t.UID] = savedKeys{k.Number, k.PresharedKey[:], saved(k.Next), saved(k.Previous)}
		}
	}
	return s
}

func saved(k plan.PresharedKey) []byte {
	if k.IsZero() {
		return nil
	}
	return k[:]
}

// known is what was saved of keys. A key of another length is none.
func (s *savedPlan) known() Known {
	key := func(b []byte) plan.PresharedKey {
		if len(b) != len(plan.PresharedKey{}) {
			return plan.PresharedKey{}
		}
		return plan.PresharedKey(b)
	}
	out := Known{Keys: map[types.UID]TunnelKeys{}, Gateways: s.Gateways}
	for uid, k := range s.Keys {
		keys := TunnelKeys{key(k.Current), plan.SpareKeys{Number: k.Number, Next: key(k.Next), Previous: key(k.Previous)}}
		if !keys.IsZero() {
			out.Keys[uid] = keys
		}
	}
	return out
}

// usable is what of it may be applied at a time, and which time that is to be taken for: a clock
// that is behind makes nothing younger. It is no tunnel once the API server has not answered
// for savedLife; what a contract was for goes with it, as ever.
func (s *savedPlan) usable(now time.Time) (tunnels []v1alpha1.Tunnel, at time.Time, stale bool) {
	at = now
	if at.Before(s.Confirmed) {
		at = s.Confirmed
	}
	if at.Sub(s.Confirmed) > savedLife {
		return nil, at, true
	}
	return s.Tunnels, at, false
}
