package peering

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Reason is a kind of error, in UPPER_SNAKE_CASE. Reasons are part of the API: programs may
// compare them, and they never change their meaning.
type Reason string

// Condition returns the reason in the form of conditions of Kubernetes: PolicyRefused.
func (r Reason) Condition() string {
	var out strings.Builder
	for word := range strings.SplitSeq(string(r), "_") {
		if word != "" {
			out.WriteString(word[:1] + strings.ToLower(word[1:]))
		}
	}
	return out.String()
}

// The reasons, with the gRPC code that goes with each. A new one needs its code in
// internal/wire, a line in docs/api.md, and, if it is a decision that a command reports as
// refused, one in cmd/entente/internal/exit.
const (
	// ReasonInternal is INTERNAL: a fault of the callee; its log says more.
	ReasonInternal Reason = "INTERNAL"
	// ReasonRequestInvalid is INVALID_ARGUMENT; the field violations say why.
	ReasonRequestInvalid Reason = "REQUEST_INVALID"
	// ReasonResponseInvalid is INTERNAL: the response of the other side breaks the protocol.
	ReasonResponseInvalid Reason = "RESPONSE_INVALID"
	// ReasonRateLimited is RESOURCE_EXHAUSTED: too many calls a second.
	ReasonRateLimited Reason = "RATE_LIMITED"
	// ReasonTooManyCalls is RESOURCE_EXHAUSTED: too many calls at once.
	ReasonTooManyCalls Reason = "TOO_MANY_CALLS"
	// ReasonStopping is UNAVAILABLE: the agent is about to stop.
	ReasonStopping Reason = "STOPPING"
	// ReasonProtocolUnsupported is FAILED_PRECONDITION: the two agents are of
	// versions that do not fit, as a whole or in what was asked for.
	ReasonProtocolUnsupported Reason = "PROTOCOL_UNSUPPORTED"

	// ReasonPeerNotTrusted is PERMISSION_DENIED: only joining is open to a
	// cluster that did not join.
	ReasonPeerNotTrusted Reason = "PEER_NOT_TRUSTED"
	// ReasonTokenInvalid is UNAUTHENTICATED.
	ReasonTokenInvalid Reason = "TOKEN_INVALID"
	// ReasonPeerIsSelf is FAILED_PRECONDITION: a cluster cannot join itself.
	ReasonPeerIsSelf Reason = "PEER_IS_SELF"
	// ReasonTrustDenied is PERMISSION_DENIED: an administrator denied the caller.
	ReasonTrustDenied Reason = "TRUST_DENIED"
	// ReasonTrustForgotten is PERMISSION_DENIED: the caller was trusted once and then forgotten,
	// and introduces itself because of the former trust.
	ReasonTrustForgotten Reason = "TRUST_FORGOTTEN"
	// ReasonIntroductionsPending is RESOURCE_EXHAUSTED: the limit of introductions that wait for
	// an administrator is reached.
	ReasonIntroductionsPending Reason = "INTRODUCTIONS_PENDING"
	// ReasonIntroductionUnknown is FAILED_PRECONDITION: there is no such introduction, or not any
	// more.
	ReasonIntroductionUnknown Reason = "INTRODUCTION_UNKNOWN"
	// ReasonCommitmentMismatch is INVALID_ARGUMENT: the number is not the one that
	// was committed to.
	ReasonCommitmentMismatch Reason = "COMMITMENT_MISMATCH"
	// ReasonGroupUnknown is NOT_FOUND: no policy of the callee names the group.
	ReasonGroupUnknown Reason = "GROUP_UNKNOWN"
	// ReasonGroupSecretMismatch is UNAUTHENTICATED: the two clusters have different secrets of a
	// group, or the connection was intercepted.
	ReasonGroupSecretMismatch Reason = "GROUP_SECRET_MISMATCH"
	// ReasonProofUnknown is FAILED_PRECONDITION: there is no run to confirm, or not any
	// more.
	ReasonProofUnknown Reason = "PROOF_UNKNOWN"
	// ReasonBundleInvalid is INVALID_ARGUMENT: the trust bundle is not the caller's,
	// or does not follow from the one before.
	ReasonBundleInvalid Reason = "BUNDLE_INVALID"

	// ReasonPolicyRefused is PERMISSION_DENIED.
	ReasonPolicyRefused Reason = "POLICY_REFUSED"
	// ReasonPolicyPending is FAILED_PRECONDITION: an administrator has to approve.
	ReasonPolicyPending Reason = "POLICY_PENDING"
	// ReasonPriceAboveCeiling is FAILED_PRECONDITION: what was asked for costs more
	// than it may.
	ReasonPriceAboveCeiling Reason = "PRICE_ABOVE_CEILING"
	// ReasonCapacityExhausted is RESOURCE_EXHAUSTED.
	ReasonCapacityExhausted Reason = "CAPACITY_EXHAUSTED"
	// ReasonAdvertisementExpired is FAILED_PRECONDITION.
	ReasonAdvertisementExpired Reason = "ADVERTISEMENT_EXPIRED"
	// ReasonContractMismatch is INVALID_ARGUMENT.
	ReasonContractMismatch Reason = "CONTRACT_MISMATCH"
	// ReasonSignatureInvalid is INVALID_ARGUMENT.
	ReasonSignatureInvalid Reason = "SIGNATURE_INVALID"
	// ReasonRevisionStale is FAILED_PRECONDITION.
	ReasonRevisionStale Reason = "REVISION_STALE"
	// ReasonHeartbeatLost is UNAVAILABLE: the other side of a session fell
	// silent.
	ReasonHeartbeatLost Reason = "HEARTBEAT_LOST"
	// ReasonSessionSuperseded is ABORTED: the peer opened a newer session.
	ReasonSessionSuperseded Reason = "SESSION_SUPERSEDED"

	// ReasonContractUnknown is NOT_FOUND.
	ReasonContractUnknown Reason = "CONTRACT_UNKNOWN"
	// ReasonContractClosed is FAILED_PRECONDITION.
	ReasonContractClosed Reason = "CONTRACT_CLOSED"
	// ReasonSyncSuperseded is ABORTED.
	ReasonSyncSuperseded Reason = "SYNC_SUPERSEDED"
	// ReasonPodUnknown is NOT_FOUND.
	ReasonPodUnknown Reason = "POD_UNKNOWN"

	// ReasonMetricsUnavailable is FAILED_PRECONDITION: nothing in the provider's cluster
	// measures pods, or not for its agent.
	ReasonMetricsUnavailable Reason = "METRICS_UNAVAILABLE"

	// ReasonReaderTooSlow is RESOURCE_EXHAUSTED: a watch whose reader does not keep
	// up; watch again.
	ReasonReaderTooSlow Reason = "READER_TOO_SLOW"
	// ReasonCallerUnknown is UNAUTHENTICATED.
	ReasonCallerUnknown Reason = "CALLER_UNKNOWN"
	// ReasonCallerNotAllowed is PERMISSION_DENIED.
	ReasonCallerNotAllowed Reason = "CALLER_NOT_ALLOWED"
	// ReasonPeerUnknown is NOT_FOUND.
	ReasonPeerUnknown Reason = "PEER_UNKNOWN"
	// ReasonTokensOutstanding is RESOURCE_EXHAUSTED.
	ReasonTokensOutstanding Reason = "TOKENS_OUTSTANDING"
	// ReasonNoEndpoint is FAILED_PRECONDITION.
	ReasonNoEndpoint Reason = "NO_ENDPOINT"
	// ReasonTokenUnknown is NOT_FOUND.
	ReasonTokenUnknown Reason = "TOKEN_UNKNOWN"
	// ReasonCodeMismatch is FAILED_PRECONDITION: the code is not the one that both
	// sides show.
	ReasonCodeMismatch Reason = "CODE_MISMATCH"
	// ReasonPeeringUnknown is NOT_FOUND.
	ReasonPeeringUnknown Reason = "PEERING_UNKNOWN"
	// ReasonRequestUnknown is NOT_FOUND: no such request waits for an administrator.
	ReasonRequestUnknown Reason = "REQUEST_UNKNOWN"
	// ReasonRolloverTooSoon is FAILED_PRECONDITION: the previous rollover has not ended.
	ReasonRolloverTooSoon Reason = "ROLLOVER_TOO_SOON"
	// ReasonTokenMalformed is INVALID_ARGUMENT.
	ReasonTokenMalformed Reason = "TOKEN_MALFORMED"
	// ReasonTokenExpired is FAILED_PRECONDITION.
	ReasonTokenExpired Reason = "TOKEN_EXPIRED"
	// ReasonPeerUnreachable is UNAVAILABLE: no endpoint of the peer responds.
	ReasonPeerUnreachable Reason = "PEER_UNREACHABLE"
	// ReasonPeerIdentity is FAILED_PRECONDITION: the cluster at the peer's endpoint is not the
	// peer.
	ReasonPeerIdentity Reason = "PEER_IDENTITY_MISMATCH"
	// ReasonPeerNameTaken is ALREADY_EXISTS: another cluster has that name here.
	ReasonPeerNameTaken Reason = "PEER_NAME_TAKEN"
	// ReasonPeeringExists is ALREADY_EXISTS.
	ReasonPeeringExists Reason = "PEERING_EXISTS"
	// ReasonPodsRunning is FAILED_PRECONDITION.
	ReasonPodsRunning Reason = "PODS_RUNNING"
	// ReasonNamespaceUnknown is NOT_FOUND.
	ReasonNamespaceUnknown Reason = "NAMESPACE_UNKNOWN"
	// ReasonNamespaceNotOffloaded is NOT_FOUND.
	ReasonNamespaceNotOffloaded Reason = "NAMESPACE_NOT_OFFLOADED"
	// ReasonMappingFixed is FAILED_PRECONDITION: a namespace's mapping never
	// changes.
	ReasonMappingFixed Reason = "MAPPING_FIXED"
	// ReasonConflict is ABORTED: something else changed the same object; try
	// again.
	ReasonConflict Reason = "CONFLICT"
	// ReasonKubernetes is UNAVAILABLE: a request to the API server of the callee's own cluster
	// failed.
	ReasonKubernetes Reason = "KUBERNETES_UNAVAILABLE"
	// ReasonKubernetesRefused is FAILED_PRECONDITION: a rule of the callee's own
	// cluster, such as an admission policy, forbids what was asked.
	ReasonKubernetesRefused Reason = "KUBERNETES_REFUSED"

	// Reasons of failed calls without one of the callee's: the name of the gRPC code.
	ReasonCanceled         = Reason("CANCELED")
	ReasonDeadlineExceeded = Reason("DEADLINE_EXCEEDED")
	ReasonUnavailable      = Reason("UNAVAILABLE")
	ReasonUnimplemented    = Reason("UNIMPLEMENTED")
	ReasonUnknown          = Reason("UNKNOWN")
)

// ResourceKey is the key of the resource for which nothing was granted, in the metadata of
// POLICY_REFUSED, CAPACITY_EXHAUSTED and REQUEST_INVALID.
const ResourceKey = "resource"

// Keys in the metadata of TOKEN_INVALID, which an issuer sends to a caller that knew the token's
// secret.
const (
	// TokenCause is why: TokenCauseExpired or TokenCauseUsed.
	TokenCause        = "cause"
	TokenCauseExpired = "expired"
	TokenCauseUsed    = "used"
	// TokenClock is the issuer's time, RFC 3339.
	TokenClock = "time"
)

// Violation is what is wrong with one field of a request.
type Violation struct {
	// Field is the path of the field, as in the proto.
	Field string
	// Message is what is wrong with it.
	Message string
}

// Error is an error that is sent with its reason.
type Error struct {
	// Reason is required.
	Reason Reason
	// Message is for people: what is wrong, where, and what to do next. It is sent to the other
	// side, so it must not have secrets or internals.
	Message string
	// RetryAfter is how long to wait before trying again. 0 means that trying again, unchanged,
	// does not help or that this is not known.
	RetryAfter time.Duration
	// Metadata has further facts, by lowerCamelCase name.
	Metadata map[string]string
	// Violations is set with ReasonRequestInvalid.
	Violations []Violation
	// Err is the cause. It is for errors.Is and for the log of the side where it happened, and is
	// never sent.
	Err error
}

// Errorf returns an Error. A %w among the arguments becomes its cause, and its text part of the
// message that is sent: wrap only what the other side may read.
func Errorf(r Reason, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Reason: r, Message: err.Error(), Err: errors.Unwrap(err)}
}

func (e *Error) Error() string {
	var msg strings.Builder
	msg.WriteString(e.Message)
	for _, v := range e.Violations {
		msg.WriteString("; " + v.Field + ": " + v.Message)
	}
	return msg.String()
}

func (e *Error) Unwrap() error { return e.Err }

// ReasonOf returns the reason of the Error in an error, or ReasonUnknown. It returns "" for nil.
func ReasonOf(err error) Reason {
	if err == nil {
		return ""
	}
	return AsError(err).Reason
}

// AsError returns the Error in err. Any other error becomes one with ReasonCanceled,
// ReasonDeadlineExceeded or ReasonUnknown; nil stays nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	e := &Error{Reason: ReasonUnknown, Message: Text(err.Error(), MaxMessageLen), Err: err}
	switch {
	case errors.Is(err, context.Canceled):
		e.Reason = ReasonCanceled
	case errors.Is(err, context.DeadlineExceeded):
		e.Reason = ReasonDeadlineExceeded
	}
	return e
}
