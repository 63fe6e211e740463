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

// A node saves the state of its fabric in two files, so that a restarted fabric can use it before
// it has reached the API server: "plan" has the objects that it last read, "key" the node's own
// WireGuard key. Each begins with a line
//
//	entente-node-state VERSION SHA-256 of the rest, in hex
//
// and the rest is JSON. Both contain secrets.

const (
	stateMagic   = "entente-node-state"
	stateVersion = "1"
)

// owner identifies the node whose state a file has, in one cluster and one install. The state of another
// node, or of the cluster that this node was in before, is not used.
type owner struct {
	Node    string `json:"node"`
	NodeUID string `json:"nodeUID"`
	// Account is the UID of the fabric's service account: each install makes one.
	Account string `json:"account"`
}

// ownerOf reads a service account's token. The kubelet wrote it and it is not used for authentication
// here, so its signature is not checked.
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
		return owner{}, errors.New("the service account's token names no node, or no account: it has to be a bound token")
	case k.Node.Name != node:
		return owner{}, fmt.Errorf("the service account's token is that of node %q, and this is %q", k.Node.Name, node)
	}
	return owner{Node: node, NodeUID: k.Node.UID, Account: k.ServiceAccount.UID}, nil
}

// encodeState returns the content of a file of an owner.
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

// decodeState reads a file. Its errors do not repeat its content, which is secret.
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
		return errors.New("it has the format of another version of Entente, this one reads format " + stateVersion)
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
		return errors.New("it belongs to another node, cluster or install")
	}
	if len(envelope.Value) == 0 || json.Unmarshal(envelope.Value, value) != nil {
		return errors.New("it is damaged: cannot decode the value")
	}
	return nil
}

// savedPlan has the objects that were last read from the API server. With the node's own routes and
// the results of probes they determine what the fabric of a node does.
type savedPlan struct {
	// Confirmed is when the API server last answered.
	Confirmed   time.Time             `json:"confirmed"`
	Node        corev1.Node           `json:"node"`
	FabricNodes []v1alpha1.FabricNode `json:"fabricNodes"`
	Tunnels     []v1alpha1.Tunnel     `json:"tunnels"`
	// Keys are the preshared keys by the UID of their tunnel, Gateways is that of [Known].
	Keys     map[types.UID]savedKeys `json:"keys"`
	Gateways []string                `json:"gateways"`
}

// savedKeys is TunnelKeys that can be read back. It does not print its keys.
type savedKeys struct {
	Number                         uint64
	Current, Next, Previous, First []byte
}

// Format hides the keys.
func (savedKeys) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte("[redacted]")) }

// LogValue hides the keys.
func (savedKeys) LogValue() slog.Value { return slog.StringValue("[redacted]") }

// newSavedPlan returns the plan to save, with only the fields that the fabric needs. It has nothing by
// which keys of nodes are replaced: others would not learn the next ones.
func newSavedPlan(confirmed time.Time, own *corev1.Node, nodes []v1alpha1.FabricNode, tunnels []v1alpha1.Tunnel, known Known) *savedPlan {
	s := &savedPlan{Confirmed: confirmed.UTC().Round(0), Keys: map[types.UID]savedKeys{}, Gateways: known.Gateways}
	s.Node.Name, s.Node.Spec.PodCIDRs, s.Node.Status.Addresses = own.Name, own.Spec.PodCIDRs, own.Status.Addresses
	for i := range nodes {
		n := &nodes[i]
		kept := v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
		kept.Spec.ClusterID, kept.Spec.Gateway, kept.Spec.AnnouncedPodCIDRs = n.Spec.ClusterID, n.Spec.Gateway, n.Spec.AnnouncedPodCIDRs
		kept.Spec.ClusterPodCIDRs = n.Spec.ClusterPodCIDRs
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
			s.Keys[t.UID] = savedKeys{k.Number, k.PresharedKey[:], saved(k.Next), saved(k.Previous), saved(k.First)}
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

// known returns the saved keys and gateways. Keys of another length are left out.
func (s *savedPlan) known() Known {
	key := func(b []byte) plan.PresharedKey {
		if len(b) != len(plan.PresharedKey{}) {
			return plan.PresharedKey{}
		}
		return plan.PresharedKey(b)
	}
	out := Known{Keys: map[types.UID]TunnelKeys{}, Gateways: s.Gateways}
	for uid, k := range s.Keys {
		keys := TunnelKeys{key(k.Current), plan.SpareKeys{Number: k.Number, Next: key(k.Next), Previous: key(k.Previous), First: key(k.First)}}
		if !keys.IsZero() {
			out.Keys[uid] = keys
		}
	}
	return out
}

// usable returns the tunnels that may be used at a time, and the time that counts: a clock
// that is behind does not make the plan younger. Once the API server has not answered for savedLife it
// returns no tunnels. Tunnels of contracts that have ended are left out later, as usual.
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
