package wire

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// kinds are the kinds of objects that can be sent.
func kinds() map[ententev1.Kind]peering.Kind {
	return map[ententev1.Kind]peering.Kind{
		ententev1.Kind_KIND_NAMESPACE: peering.KindNamespace, ententev1.Kind_KIND_CONFIG_MAP: peering.KindConfigMap, ententev1.Kind_KIND_SECRET: peering.KindSecret,
		ententev1.Kind_KIND_SERVICE: peering.KindService, ententev1.Kind_KIND_POD: peering.KindPod,
		ententev1.Kind_KIND_PERSISTENT_VOLUME_CLAIM: peering.KindClaim, ententev1.Kind_KIND_NETWORK_POLICY: peering.KindNetworkPolicy,
	}
}

// crosses returns the wire's value of a value of package peering, or its zero value, which is
// unspecified.
func crosses[W, V comparable](values map[W]V, value V) W {
	for w, v := range values {
		if v == value {
			return w
		}
	}
	var unspecified W
	return unspecified
}

// kindTo writes a kind. An unknown kind becomes unspecified.
func kindTo(k peering.Kind) ententev1.Kind { return crosses(kinds(), k) }

// kindFrom reads a kind. The error for a kind of a later version is PROTOCOL_UNSUPPORTED.
func kindFrom(k ententev1.Kind) (peering.Kind, error) {
	kind, known := kinds()[k]
	switch {
	case k == ententev1.Kind_KIND_UNSPECIFIED:
		return 0, invalid("ref.kind", "want a kind that can be sent")
	case !known:
		return 0, newer("ref.kind", strconv.Itoa(int(k)))
	}
	return kind, nil
}

// ObjectRefTo writes a reference.
func ObjectRefTo(r peering.ObjectRef) *ententev1.ObjectRef {
	return &ententev1.ObjectRef{Kind: kindTo(r.Kind), Namespace: r.Namespace, Name: r.Name, Uid: r.UID}
}

// ObjectRefFrom reads a reference: names that Kubernetes would take and a UID
// that can be a label's value.
func ObjectRefFrom(m *ententev1.ObjectRef) (peering.ObjectRef, error) {
	if m == nil {
		return peering.ObjectRef{}, invalid("ref", "is required")
	}
	kind, err := kindFrom(m.GetKind())
	if err != nil {
		return peering.ObjectRef{}, err
	}
	r := peering.ObjectRef{Kind: kind, Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUid()}
	return r, CheckObjectRef(r)
}

// CheckObjectRef returns an error unless a reference may be sent.
func CheckObjectRef(r peering.ObjectRef) error {
	if kindTo(r.Kind) == ententev1.Kind_KIND_UNSPECIFIED {
		return invalid("ref.kind", "want a kind that can be sent")
	}
	if r.Kind == peering.KindNamespace {
		if r.Namespace != "" {
			return invalid("ref.namespace", "is empty for a namespace")
		}
		if r.Name == "" {
			return invalid("ref.name", "is required")
		}
		if err := checkLabel("ref.name", r.Name); err != nil {
			return err
		}
	} else {
		if r.Namespace == "" {
			return invalid("ref.namespace", "is required")
		}
		if err := checkLabel("ref.namespace", r.Namespace); err != nil {
			return err
		}
		if err := checkSubdomain("ref.name", r.Name); err != nil {
			return err
		}
	}
	return checkUID("ref.uid", r.UID)
}

// checkUID accepts a UID that can be a label's value.
func checkUID(field, uid string) error {
	if uid == "" || len(uid) > min(MaxUIDLen, 63) {
		return invalid(field, "want 1 to 63 characters")
	}
	for i, c := range []byte(uid) {
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (c != '-' || i == 0 || i == len(uid)-1) {
			return invalid(field, "want letters, digits and dashes only")
		}
	}
	return nil
}

// checkSubdomain accepts a DNS subdomain as in RFC 1123, which the names of all objects that are
// sent are.
func checkSubdomain(field, s string) error {
	if s == "" || len(s) > MaxObjectNameLen {
		return invalid(field, "want 1 to %d characters", MaxObjectNameLen)
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return invalid(field, "want a DNS subdomain")
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
				return invalid(field, "want a DNS subdomain: lower-case letters, digits, dashes and dots")
			}
		}
	}
	return nil
}

// OpenTo returns the first message of a Sync stream.
func OpenTo(contract string) *ententev1.SyncRequest {
	return &ententev1.SyncRequest{Message: &ententev1.SyncRequest_Open_{
		Open: &ententev1.SyncRequest_Open{ContractId: contract},
	}}
}

// PingTo writes a ping.
func PingTo(number uint64) *ententev1.SyncResponse {
	return &ententev1.SyncResponse{Message: &ententev1.SyncResponse_Ping_{Ping: &ententev1.SyncResponse_Ping{Number: number}}}
}

// PongTo writes the response to a ping.
func PongTo(number uint64) *ententev1.SyncRequest {
	return &ententev1.SyncRequest{Message: &ententev1.SyncRequest_Pong_{Pong: &ententev1.SyncRequest_Pong{Number: number}}}
}

// ContractIDFrom reads the ID of a contract.
func ContractIDFrom(id string) (string, error) { return id, checkID("contract_id", id) }

// ApplyTo writes an object.
func ApplyTo(o peering.Object) *ententev1.SyncRequest {
	hash := o.Hash()
	return &ententev1.SyncRequest{Message: &ententev1.SyncRequest_Apply_{Apply: &ententev1.SyncRequest_Apply{
		Ref: ObjectRefTo(o.Ref), Hash: hash[:], Object: o.JSON, Remember: Patchable(o),
	}}}
}

// ApplyFrom reads an object. The hash has to be that of the object. The object
// shares its bytes with the message.
func ApplyFrom(m *ententev1.SyncRequest_Apply) (peering.Object, error) {
	ref, err := ObjectRefFrom(m.GetRef())
	if err != nil {
		return peering.Object{}, err
	}
	if n := len(m.GetObject()); n < 2 || n > MaxObjectBytes {
		return peering.Object{}, invalid("apply.object", "has %d bytes, want 2 to %d", n, MaxObjectBytes)
	}
	o := peering.Object{Ref: ref, JSON: m.GetObject()}
	hash, err := hashFrom("apply.hash", m.GetHash())
	if err != nil {
		return peering.Object{}, err
	}
	if hash != o.Hash() {
		return peering.Object{}, invalid("apply.hash", "is not the hash of the object")
	}
	return o, nil
}

// DeleteTo writes a delete.
func DeleteTo(r peering.ObjectRef, grace *int64) *ententev1.SyncRequest {
	return &ententev1.SyncRequest{Message: &ententev1.SyncRequest_Delete_{Delete: &ententev1.SyncRequest_Delete{
		Ref: ObjectRefTo(r), GracePeriodSeconds: grace,
	}}}
}

// DeleteFrom reads a delete. A grace period beyond MaxGraceSeconds is cut to
// that; a negative one is an error.
func DeleteFrom(m *ententev1.SyncRequest_Delete) (peering.ObjectRef, *int64, error) {
	ref, err := ObjectRefFrom(m.GetRef())
	if err != nil {
		return peering.ObjectRef{}, nil, err
	}
	if m == nil || m.GracePeriodSeconds == nil {
		return ref, nil, nil
	}
	grace := m.GetGracePeriodSeconds()
	if grace < 0 {
		return peering.ObjectRef{}, nil, invalid("delete.grace_period_seconds", "is negative")
	}
	grace = min(grace, MaxGraceSeconds)
	return ref, &grace, nil
}

// HeldTo writes an object that exists at the provider.
func HeldTo(h peering.Held) *ententev1.SyncResponse {
	return &ententev1.SyncResponse{Message: &ententev1.SyncResponse_Existing_{Existing: &ententev1.SyncResponse_Existing{
		Ref: ObjectRefTo(h.Ref), Hash: h.Hash[:],
	}}}
}

// HeldFrom reads an object that exists at the provider.
func HeldFrom(m *ententev1.SyncResponse_Existing) (peering.Held, error) {
	ref, err := ObjectRefFrom(m.GetRef())
	if err != nil {
		return peering.Held{}, err
	}
	hash, err := hashFrom("held.hash", m.GetHash())
	return peering.Held{Ref: ref, Hash: hash}, err
}

// SyncedTo writes the end of the list of objects that exist at the provider.
func SyncedTo() *ententev1.SyncResponse {
	return &ententev1.SyncResponse{Message: &ententev1.SyncResponse_Synced_{Synced: &ententev1.SyncResponse_Synced{}}}
}

// AckTo writes an acknowledgement.
func AckTo(a peering.Ack) *ententev1.SyncResponse {
	m := &ententev1.SyncResponse_Ack{Ref: ObjectRefTo(a.Ref), Remembered: a.Remembered && a.Refusal == nil}
	if a.Hash != (peering.Hash{}) {
		m.Hash = a.Hash[:]
	}
	if a.Refusal != nil {
		m.Reason = string(peering.RefusedInternal)
		if validReason(string(a.Refusal.Reason)) {
			m.Reason = string(a.Refusal.Reason)
		}
		m.Message = peering.Text(a.Refusal.Message, peering.MaxMessageLen)
		m.Retryable = a.Refusal.Retryable
	}
	return &ententev1.SyncResponse{Message: &ententev1.SyncResponse_Ack_{Ack: m}}
}

// AckFrom reads an acknowledgement. A reason that this version does not know is kept, so that
// administrators see it.
func AckFrom(m *ententev1.SyncResponse_Ack) (peering.Ack, error) {
	ref, err := ObjectRefFrom(m.GetRef())
	if err != nil {
		return peering.Ack{}, err
	}
	a := peering.Ack{Ref: ref, Remembered: m.GetRemembered() && m.GetReason() == ""}
	if len(m.GetHash()) > 0 {
		if a.Hash, err = hashFrom("ack.hash", m.GetHash()); err != nil {
			return peering.Ack{}, err
		}
	}
	if m.GetReason() == "" {
		return a, nil
	}
	if !validReason(m.GetReason()) {
		return peering.Ack{}, invalid("ack.reason", "want a reason in UPPER_SNAKE_CASE")
	}
	a.Refusal = &peering.Refusal{
		Reason:    peering.RefusalReason(m.GetReason()),
		Message:   peering.Text(m.GetMessage(), peering.MaxMessageLen),
		Retryable: m.GetRetryable(),
	}
	return a, nil
}

// PodStatusTo writes a pod's status.
func PodStatusTo(s peering.PodStatus) *ententev1.SyncResponse {
	return &ententev1.SyncResponse{Message: &ententev1.SyncResponse_Status_{Status: &ententev1.SyncResponse_Status{
		Ref: ObjectRefTo(s.Ref), RemoteName: s.RemoteName, RemoteUid: s.RemoteUID, Status: s.Status,
		Gone: s.Gone, DeletionTimestamp: s.DeletionTimestamp,
	}}}
}

// PodStatusFrom reads a pod's status. It checks only the size and the amounts of the JSON; code
// that decodes the JSON checks the rest. The status shares its bytes with the message.
func PodStatusFrom(m *ententev1.SyncResponse_Status) (peering.PodStatus, error) {
	ref, err := ObjectRefFrom(m.GetRef())
	if err != nil {
		return peering.PodStatus{}, err
	}
	if ref.Kind != peering.KindPod {
		return peering.PodStatus{}, invalid("status.ref.kind", "want a pod")
	}
	if len(m.GetStatus()) > MaxStatusBytes {
		return peering.PodStatus{}, invalid("status.status", "has %d bytes, want at most %d", len(m.GetStatus()), MaxStatusBytes)
	}
	name, err := cleanString("status.remote_name", m.GetRemoteName(), 63+1+MaxObjectNameLen)
	if err != nil {
		return peering.PodStatus{}, err
	}
	uid, err := cleanString("status.remote_uid", m.GetRemoteUid(), MaxUIDLen)
	if err != nil {
		return peering.PodStatus{}, err
	}
	if t := m.GetDeletionTimestamp(); t != "" {
		if _, err := time.Parse(time.RFC3339, t); err != nil || len(t) > len(time.RFC3339Nano) {
			return peering.PodStatus{}, invalid("status.deletion_timestamp", "want a time as in RFC 3339")
		}
	}
	s := peering.PodStatus{
		Ref: ref, RemoteName: name, RemoteUID: uid, Gone: m.GetGone(), DeletionTimestamp: m.GetDeletionTimestamp(),
	}
	if len(m.GetStatus()) > 0 {
		if err := CheckQuantities(m.GetStatus()); err != nil {
			return peering.PodStatus{}, invalid("status.status", "%v", err)
		}
		s.Status = m.GetStatus()
	}
	return s, nil
}

// PodEndFrom reads what can be used of a pod's status that PodStatusFrom refuses, as an older provider may send
// it: that the pod is gone, and its phase if that is final. It returns false if there is neither.
func PodEndFrom(m *ententev1.SyncResponse_Status) (peering.PodStatus, bool) {
	ref, err := ObjectRefFrom(m.GetRef())
	if err != nil || ref.Kind != peering.KindPod {
		return peering.PodStatus{}, false
	}
	s := peering.PodStatus{Ref: ref, Gone: m.GetGone()}
	var status struct {
		Phase string `json:"phase"`
	}
	if json.Unmarshal(m.GetStatus(), &status) != nil || status.Phase != "Succeeded" && status.Phase != "Failed" {
		return s, s.Gone
	}
	s.Status = []byte(`{"phase":"` + status.Phase + `"}`)
	return s, true
}

// PodEventTo writes an event, with its texts cut to what the other side accepts.
func PodEventTo(e peering.PodEvent) *ententev1.SyncResponse {
	return &ententev1.SyncResponse{Message: &ententev1.SyncResponse_Event_{Event: &ententev1.SyncResponse_Event{
		Ref: ObjectRefTo(e.Ref), Type: eventType(e.Type), Reason: peering.Text(e.Reason, maxEventReasonLen),
		Message: peering.Text(e.Message, maxEventMessageLen), Count: max(e.Count, 1),
	}}}
}

// PodEventFrom reads an event. Texts are cut and control characters are removed; a type that
// Kubernetes does not have becomes Warning.
func PodEventFrom(m *ententev1.SyncResponse_Event) (peering.PodEvent, error) {
	ref, err := ObjectRefFrom(m.GetRef())
	if err != nil {
		return peering.PodEvent{}, err
	}
	if ref.Kind != peering.KindPod {
		return peering.PodEvent{}, invalid("event.ref.kind", "want a pod")
	}
	return peering.PodEvent{
		Ref: ref, Type: eventType(m.GetType()), Reason: peering.Text(m.GetReason(), maxEventReasonLen),
		Message: peering.Text(m.GetMessage(), maxEventMessageLen), Count: max(m.GetCount(), 1),
	}, nil
}

func eventType(s string) string {
	if s == "Normal" {
		return s
	}
	return "Warning"
}

func hashFrom(field string, b []byte) (peering.Hash, error) {
	var h peering.Hash
	if len(b) != len(h) {
		return h, invalid(field, "has %d bytes, want %d", len(b), len(h))
	}
	copy(h[:], b)
	return h, nil
}
