package move

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/entente-dev/entente/internal/volumecopy"
)

// Record says what is moved, and what was found on the way: the data of a ConfigMap.
type Record struct {
	// Namespace and Claim say whose volume is moved. UID is that of the claim with the old one.
	Namespace string    `json:"namespace"`
	Claim     string    `json:"claim"`
	UID       types.UID `json:"uid"`
	// Labels, Annotations and Spec are those with which the claim is made again.
	Labels      map[string]string                `json:"labels,omitempty"`
	Annotations map[string]string                `json:"annotations,omitempty"`
	Spec        corev1.PersistentVolumeClaimSpec `json:"spec"`
	// From is the ID of the cluster in which the old volume is; empty means this one. Source is the
	// volume's name, and SourcePolicy its previous reclaim policy.
	From         string                               `json:"from,omitempty"`
	Source       string                               `json:"source"`
	SourcePolicy corev1.PersistentVolumeReclaimPolicy `json:"sourcePolicy"`
	// To is the ID of the destination cluster, and ToName its name here. Class is the
	// storage class of the new volume.
	To     string `json:"to,omitempty"`
	ToName string `json:"toName"`
	Class  string `json:"class"`
	// Image is the image of the pods, User their user; nil means root.
	Image string `json:"image"`
	User  *int64 `json:"user,omitempty"`
	// DeleteSource says that the old volume is deleted in the end.
	DeleteSource bool `json:"deleteSource,omitempty"`
	// Aborted says that the claim gets its old volume back, and the new one is deleted.
	Aborted bool `json:"aborted,omitempty"`

	// Destination is the name of the new volume once it exists, DestinationPolicy the reclaim
	// policy that it gets.
	Destination       string                               `json:"destination,omitempty"`
	DestinationPolicy corev1.PersistentVolumeReclaimPolicy `json:"destinationPolicy,omitempty"`
	// Verified is the digest that both sides read, once it was equal.
	Verified *volumecopy.Sum `json:"verified,omitempty"`
	// Unmarked says that nothing of the copy is left on the new volume.
	Unmarked bool `json:"unmarked,omitempty"`
}

const (
	recordKey = "move"
	// LabelMove is on all objects of a move; its value is a hash of the claim.
	LabelMove = "entente.dev/move"
)

// ID names a move by its claim, which has at most one.
func ID(namespace, claim string) string {
	sum := sha256.Sum256([]byte(namespace + "/" + claim))
	return hex.EncodeToString(sum[:5])
}

// Name is the name of the objects of the move of a claim.
func Name(namespace, claim string) string { return "entente-move-" + ID(namespace, claim) }

func (r *Record) name() string     { return Name(r.Namespace, r.Claim) }
func (r *Record) sender() string   { return r.name() + "-from" }
func (r *Record) receiver() string { return r.name() + "-to" }

// data is the record as the data of a ConfigMap.
func (r *Record) data() (map[string]string, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("write the record: %w", err)
	}
	return map[string]string{recordKey: string(text)}, nil
}

// readRecord reads the record of a move from its ConfigMap.
func readRecord(c *corev1.ConfigMap) (*Record, error) {
	text := c.Data[recordKey]
	if len(text) > maxRecord {
		return nil, errors.New("the record is too large")
	}
	r := &Record{}
	if err := json.Unmarshal([]byte(text), r); err != nil {
		return nil, fmt.Errorf("configmap %s/%s is not a record of a move: %w", c.Namespace, c.Name, err)
	}
	if r.Namespace != c.Namespace || r.name() != c.Name || r.Source == "" || r.UID == "" || r.From == r.To && r.Class == "" {
		return nil, fmt.Errorf("configmap %s/%s is not a record of a move", c.Namespace, c.Name)
	}
	return r, nil
}
