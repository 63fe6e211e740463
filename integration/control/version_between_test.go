package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/session"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/jointoken"
)

// between is a man in the middle of two clusters, with the keys of both: it reads and rewrites
// everything that two whole agents send each other, which nobody without the keys could.
type between struct {
	// odd is the cluster whose agent is of another revision.
	odd     *cluster
	rewrite revision
	// home and abroad are what the two take for their peer.
	home, abroad *face
}

// revision translates the messages of today's agents into those that an agent of another revision
// would send and receive. Its methods are called from many streams at once.
type revision interface {
	// sends rewrites a message of the odd agent's; what it returns is sent.
	sends(method string, m proto.Message) []proto.Message
	// receives rewrites a message to the odd agent; nil drops it.
	receives(method string, m proto.Message) proto.Message
	// fails rewrites an error that the odd agent answers.
	fails(method string, st *status.Status) *status.Status
	// lacks says that the odd agent does not have a method.
	lacks(method string) bool
}

// face is the end that one cluster takes for its peer.
type face struct {
	b *between
	// to is the cluster that sees it, id that one's, as the other cluster, whose
	// identity it has.
	to       *cluster
	id       peering.ClusterID
	as       *face
	source   *identity.Source
	sessions *session.Manager
	endpoint string
}

func newBetween(t *testing.T, home, abroad, odd *cluster, rewrite revision) *between {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	b := &between{odd: odd, rewrite: rewrite}
	b.home, b.abroad = &face{b: b, to: home}, &face{b: b, to: abroad}
	b.home.as, b.abroad.as = b.abroad, b.home
	identities := map[*face]*identity.Identity{}
	for _, f := range []*face{b.home, b.abroad} {
		id, err := store.LoadIdentity(ctx, f.to.client, systemNamespace, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		identities[f], f.id = id, id.ID()
	}
	var tasks sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		tasks.Wait()
	})
	for _, f := range []*face{b.home, b.abroad} {
		var err error
		if f.source, err = identity.NewSource(identity.SourceConfig{Identity: identities[f.as]}); err != nil {
			t.Fatal(err)
		}
		bundles := identity.NewBundles()
		if err := bundles.Trust(f.id, identities[f].TrustBundle()); err != nil {
			t.Fatal(err)
		}
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		f.endpoint = listener.Addr().String()
		f.sessions, err = session.New(session.Config{
			Source: f.source, Bundles: bundles, Listener: listener,
			Server: grpc.NewServer(grpc.Creds(session.ServerCredentials()), grpc.UnknownServiceHandler(f.forward)),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []*face{b.home, b.abroad} {
		tasks.Go(func() { _ = f.sessions.Run(ctx) })
	}
	tasks.Go(func() { b.follow(ctx) })
	return b
}

// follow dials abroad while home has a session, and ends each with the other.
func (b *between) follow(ctx context.Context) {
	fromHome, cancel := b.home.sessions.Subscribe()
	defer cancel()
	fromAbroad, cancelAbroad := b.abroad.sessions.Subscribe()
	defer cancelAbroad()
	gone := errors.New("the other side ended it")
	var dialled uint64
	wasUp := false
	for {
		home, abroad := b.home.sessions.Status(b.home.id).Session, b.abroad.sessions.Status(b.abroad.id).Session
		switch {
		case home == nil:
			b.abroad.sessions.SetPeers(nil)
			b.abroad.sessions.Close(b.abroad.id, gone)
			dialled, wasUp = 0, false
		case dialled != home.Number:
			b.abroad.sessions.SetPeers([]session.Peer{{ID: b.abroad.id, Endpoints: []string{b.abroad.to.peerAddress}}})
			dialled = home.Number
		case abroad == nil && wasUp:
			b.home.sessions.Close(b.home.id, gone)
			wasUp = false
		case abroad != nil:
			wasUp = true
		}
		select {
		case <-ctx.Done():
			return
		case <-fromHome:
		case <-fromAbroad:
		}
	}
}

// join makes the two clusters trust each other through what stands between them.
func (b *between) join(ctx context.Context) error {
	text, err := createToken(ctx, b.abroad.to)
	if err != nil {
		return fmt.Errorf("create a token: %w", err)
	}
	token, err := jointoken.Parse(text)
	if err != nil {
		return err
	}
	token.Endpoints = []string{b.home.endpoint}
	if text, err = token.Encode(); err != nil {
		return err
	}
	if err := errors.Join(world.secrets.Token(text), redeem(ctx, b.home.to, text)); err != nil {
		return fmt.Errorf("redeem the token: %w", err)
	}
	return nil
}

// strangers are the methods that are called before there is a session.
var strangers = map[string]bool{
	ententev1.TrustService_Join_FullMethodName:      true,
	ententev1.TrustService_Introduce_FullMethodName: true,
	ententev1.TrustService_Reveal_FullMethodName:    true,
}

// messagesOf returns a method's request and response.
func messagesOf(method string) (request, response protoreflect.MessageType, err error) {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service + "." + name))
	if err != nil {
		return nil, nil, status.Errorf(codes.Unimplemented, "unknown method %s", method)
	}
	m := d.(protoreflect.MethodDescriptor)
	if request, err = protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName()); err != nil {
		return nil, nil, err
	}
	response, err = protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
	return request, response, err
}

// forward carries on a call of the cluster that this is the face for, to the other.
func (f *face) forward(_ any, in grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(in)
	request, response, err := messagesOf(method)
	if err != nil {
		return err
	}
	from, to := f.to, f.as.to
	if to == f.b.odd && f.b.rewrite.lacks(method) {
		return status.Errorf(codes.Unimplemented, "unknown method %s", method)
	}
	ctx, cancel := context.WithCancel(in.Context())
	defer cancel()
	conn := f.as.sessions.Conn(f.as.id)
	if strangers[method] {
		own, err := grpc.NewClient("passthrough:///"+to.peerAddress, grpc.WithTransportCredentials(plainTLS{f.as.source.ClientTLS(f.as.id, nil, "", "h2")}))
		if err != nil {
			return err
		}
		defer own.Close()
		conn = own
	}
	out, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	go func() {
		for {
			m := request.New().Interface()
			if err := in.RecvMsg(m); errors.Is(err, io.EOF) {
				_ = out.CloseSend()
				return
			} else if err != nil {
				cancel()
				return
			}
			for _, m := range f.b.carry(from, method, m) {
				if out.SendMsg(m) != nil {
					return // and why is what it answers
				}
			}
		}
	}()
	for {
		m := response.New().Interface()
		if err := out.RecvMsg(m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			st := status.Convert(err)
			if to == f.b.odd {
				st = f.b.rewrite.fails(method, st)
			}
			return st.Err()
		}
		for _, m := range f.b.carry(to, method, m) {
			if err := in.SendMsg(m); err != nil {
				return err
			}
		}
	}
}

// carry rewrites a message that a cluster sends: as an agent of another revision
// says or hears it, and so that both clusters dial what stands between them, home
// alone.
func (b *between) carry(from *cluster, method string, m proto.Message) []proto.Message {
	endpoints := []string{b.home.endpoint}
	if from == b.home.to {
		endpoints = nil
	}
	each(m.ProtoReflect(), func(part protoreflect.Message) {
		switch x := part.Interface().(type) {
		case *ententev1.ClusterInfo:
			x.Endpoints = endpoints
		case *ententev1.PeerState:
			x.Endpoints = endpoints
		}
	})
	if from == b.odd {
		return b.rewrite.sends(method, m)
	}
	if m = b.rewrite.receives(method, m); m == nil {
		return nil
	}
	return []proto.Message{m}
}

// each calls do for a message and all messages in it.
func each(m protoreflect.Message, do func(protoreflect.Message)) {
	do(m)
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap():
			if field.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					each(v.Message(), do)
					return true
				})
			}
		case field.Message() == nil:
		case field.IsList():
			for i := range v.List().Len() {
				each(v.List().Get(i).Message(), do)
			}
		default:
			each(v.Message(), do)
		}
		return true
	})
}

// laterKind and laterPhase are values of enums that only a later revision has.
const (
	laterKind  = ententev1.Kind(99)
	laterPhase = ententev1.ContractState_Phase(99)
)

// unknownFields are fields that no agent knows: a number, and a message with text.
func unknownFields() protoreflect.RawFields {
	b := protowire.AppendTag(nil, 4306, protowire.VarintType)
	b = protowire.AppendVarint(b, 42)
	b = protowire.AppendTag(b, 4307, protowire.BytesType)
	return protowire.AppendBytes(b, protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "from beyond"))
}

// asLater adds unknown fields to a message and all in it.
func asLater(m proto.Message) proto.Message {
	each(m.ProtoReflect(), func(part protoreflect.Message) { part.SetUnknown(append(part.GetUnknown(), unknownFields()...)) })
	return m
}

// laterAgent is an agent of a later revision.
type laterAgent struct {
	// protocol is the revision that it says.
	protocol uint32

	mu sync.Mutex
	// refusal, if set, is the reason that it gives where its policy refuses, and
	// exposure what it offers.
	refusal, exposure string
	// answered are the answers to what today's agent cannot know, heard the revision
	// that one says, counts the messages by method.
	answered []*ententev1.SyncResponse_Ack
	heard    uint32
	counts   map[string]int
}

// set changes what it says.
func (l *laterAgent) set(refusal, exposure string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refusal, l.exposure = refusal, exposure
}

// sends implements revision: what today's agent says, and more.
func (l *laterAgent) sends(method string, m proto.Message) []proto.Message {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.counts == nil {
		l.counts = map[string]int{}
	}
	l.counts[method]++
	out := []proto.Message{m}
	switch x := m.(type) {
	case *ententev1.SessionRequest:
		l.state(x.GetState())
	case *ententev1.SessionResponse:
		l.state(x.GetState())
	case *ententev1.RequestPeeringResponse:
		if l.exposure != "" {
			x.GetAdvertisement().Exposure = l.exposure
		}
	case *ententev1.WatchOfferResponse:
		if x.GetOffer().GetAvailable() {
			x.Offer.Resources.Amounts["later.example/qubits"] = "7"
			x.Offer.Architectures = append(x.Offer.Architectures, "riscv128")
			x.Offer.StorageClasses = append(x.Offer.StorageClasses, "holographic")
		}
	case *ententev1.SyncRequest:
		if x.GetOpen() != nil {
			out = append(out, &ententev1.SyncRequest{}, l.applyLater(), &ententev1.SyncRequest{Message: &ententev1.SyncRequest_Delete_{Delete: &ententev1.SyncRequest_Delete{Ref: laterRef()}}})
		}
	case *ententev1.SyncResponse:
		if x.GetEvent() != nil {
			x.GetEvent().Type = "Notice"
		}
		ref := laterRef()
		hash := make([]byte, 32)
		out = []proto.Message{
			&ententev1.SyncResponse{},
			m,
		}
		switch x.GetMessage().(type) {
		case *ententev1.SyncResponse_Existing_, *ententev1.SyncResponse_Synced_:
			out = append([]proto.Message{&ententev1.SyncResponse{Message: &ententev1.SyncResponse_Existing_{Existing: &ententev1.SyncResponse_Existing{Ref: ref, Hash: hash}}}}, out...)
		default:
			out = append(out,
				&ententev1.SyncResponse{Message: &ententev1.SyncResponse_Ack_{Ack: &ententev1.SyncResponse_Ack{Ref: ref, Hash: hash}}},
				&ententev1.SyncResponse{Message: &ententev1.SyncResponse_Status_{Status: &ententev1.SyncResponse_Status{Ref: ref}}},
				&ententev1.SyncResponse{Message: &ententev1.SyncResponse_Event_{Event: &ententev1.SyncResponse_Event{Ref: ref}}},
			)
		}
	}
	for _, m := range out {
		asLater(m)
	}
	return out
}

func laterRef() *ententev1.ObjectRef {
	return &ententev1.ObjectRef{Kind: laterKind, Namespace: "default", Name: "of-a-later-kind", Uid: "11111111-2222-3333-4444-555555555555"}
}

func (*laterAgent) applyLater() *ententev1.SyncRequest {
	o := peering.Object{JSON: []byte("{}")}
	hash := o.Hash()
	return &ententev1.SyncRequest{Message: &ententev1.SyncRequest_Apply_{Apply: &ententev1.SyncRequest_Apply{Ref: laterRef(), Hash: hash[:], Object: o.JSON}}}
}

// state adds to a state what a later revision may: capabilities, a contract in a
// phase that today's agent does not know, and each now and then that phase for the
// contracts that it does know.
func (l *laterAgent) state(s *ententev1.PeerState) {
	s.Protocol = l.protocol
	s.Capabilities = append(s.Capabilities, "teleport/v3", strings.Repeat("x", 64))
	if s.GetSequence()%4 == 3 {
		for _, c := range s.GetContracts() {
			c.Phase = laterPhase
		}
	}
	s.Contracts = append(s.Contracts, &ententev1.ContractState{ContractId: "c-of-a-later-kind", Revision: 7, Phase: laterPhase})
}

// receives implements revision: it takes the answers to what today's agent cannot know.
func (l *laterAgent) receives(_ string, m proto.Message) proto.Message {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch x := m.(type) {
	case *ententev1.SessionRequest:
		l.heard = x.GetState().GetProtocol()
	case *ententev1.SessionResponse:
		l.heard = x.GetState().GetProtocol()
	case *ententev1.SyncResponse:
		if ack := x.GetAck(); ack.GetRef().GetKind() == laterKind {
			l.answered = append(l.answered, ack)
			return nil
		}
	}
	return m
}

// fails implements revision: unknown details, and another reason.
func (l *laterAgent) fails(_ string, st *status.Status) *status.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := st.Proto()
	p.Details = append(p.GetDetails(), &anypb.Any{TypeUrl: "type.googleapis.com/entente.v9.Hint", Value: unknownFields()})
	for _, d := range p.GetDetails() {
		var info errdetails.ErrorInfo
		if d.UnmarshalTo(&info) == nil && info.GetReason() == string(peering.ReasonPolicyRefused) && l.refusal != "" {
			info.Reason = l.refusal
			info.Metadata = map[string]string{"laterFact": "42"}
			_ = d.MarshalFrom(&info)
		}
	}
	return status.FromProto(p)
}

func (*laterAgent) lacks(string) bool { return false }

// earlierAgent is an agent of a revision before this one, which lacks what came last.
type earlierAgent struct {
	mu     sync.Mutex
	lacked map[string]int
}

func (*earlierAgent) sends(_ string, m proto.Message) []proto.Message {
	return []proto.Message{forgetful(m)}
}

func (*earlierAgent) receives(_ string, m proto.Message) proto.Message { return forgetful(m) }

// forgetful takes out what an earlier revision does not say, or does not read.
func forgetful(m proto.Message) proto.Message {
	each(m.ProtoReflect(), func(part protoreflect.Message) {
		switch x := part.Interface().(type) {
		case *ententev1.PeerState:
			x.Protocol, x.Capabilities, x.BundleHash = 0, nil, nil
		case *ententev1.ContractState:
			x.StatementSequence, x.DrainUntil, x.Message = 0, nil, ""
		case *ententev1.TerminateContractRequest:
			x.DrainUntil = nil
		case *ententev1.Advertisement:
			x.HourlyPrice, x.StorageClasses = nil, nil
		case *ententev1.SyncResponse_Status:
			x.DeletionTimestamp = ""
		}
	})
	return m
}

func (*earlierAgent) fails(_ string, st *status.Status) *status.Status {
	return status.New(st.Code(), st.Message()) // it knew no details
}

func (e *earlierAgent) lacks(method string) bool {
	switch method {
	case ententev1.PeeringService_WatchOffer_FullMethodName, ententev1.PeeringService_ListStatements_FullMethodName,
		ententev1.TrustService_UpdateBundle_FullMethodName, ententev1.TrustService_Revoke_FullMethodName,
		ententev1.OffloadService_PortForward_FullMethodName:
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.lacked == nil {
			e.lacked = map[string]int{}
		}
		e.lacked[method]++
		return true
	}
	return false
}
