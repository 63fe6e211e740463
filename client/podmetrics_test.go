package client

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/internal/wire/wiretest"
	"github.com/entente-dev/entente/peering"
)

// sayer answers with some messages.
type sayer struct {
	ententev1.UnimplementedOffloadServiceServer
	messages []*ententev1.PodMetricsResponse
}

func (s sayer) PodMetrics(_ *ententev1.PodMetricsRequest, stream ententev1.OffloadService_PodMetricsServer) error {
	for _, m := range s.messages {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}

func TestPodMetricsOfAProviderThatMayBeHostile(t *testing.T) {
	t.Parallel()
	now := timestamppb.Now()
	pod := func(uid string) *ententev1.PodMetricsResponse_Pod {
		return &ententev1.PodMetricsResponse_Pod{Uid: uid, Time: now, Window: durationpb.New(time.Second)}
	}
	endless := make([]*ententev1.PodMetricsResponse, wire.MaxMetricsMessages+1)
	for i := range endless {
		endless[i] = &ententev1.PodMetricsResponse{SendTime: now}
	}
	for name, test := range map[string]struct {
		says []*ententev1.PodMetricsResponse
		pods int
		want peering.Reason
	}{
		"two messages":                 {[]*ententev1.PodMetricsResponse{{SendTime: now, Pods: []*ententev1.PodMetricsResponse_Pod{pod("a")}}, {Pods: []*ententev1.PodMetricsResponse_Pod{pod("b")}}}, 2, ""},
		"nothing":                      {nil, 0, peering.ReasonResponseInvalid},
		"no time":                      {[]*ententev1.PodMetricsResponse{{Pods: []*ententev1.PodMetricsResponse_Pod{pod("a")}}}, 0, peering.ReasonResponseInvalid},
		"one pod makes no sense":       {[]*ententev1.PodMetricsResponse{{SendTime: now, Pods: []*ententev1.PodMetricsResponse_Pod{pod("a"), {}}}}, 0, peering.ReasonResponseInvalid},
		"more messages than the limit": {endless, 0, peering.ReasonResponseInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := wiretest.NewServer()
			ententev1.RegisterOffloadServiceServer(g, sayer{messages: test.says})
			listener := bufconn.Listen(1 << 20)
			go func() { _ = g.Serve(listener) }()
			defer g.Stop()
			conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			got, err := PodMetrics(t.Context(), conn, "c-1")
			if err == nil && test.want != "" || err != nil && wire.FromStatus(err).Reason != test.want || len(got.Pods) != test.pods {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}
