package server

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/internal/wire/wiretest"
	"github.com/entente-dev/entente/peering"
)

// meter measures pods of contracts.
type meter map[string]error

func (m meter) PodMetrics(_ context.Context, contract string) (peering.ContractMetrics, error) {
	now := time.Now()
	return peering.ContractMetrics{Time: now, Pods: []peering.PodMetrics{{UID: "of-" + contract, Time: now, Window: time.Minute}}}, m[contract]
}

func TestPodMetricsAreForTheConsumerOfAContract(t *testing.T) {
	t.Parallel()
	idle := slowObjects{}
	cfg := OffloadConfig{
		Objects: idle, Streams: idle, Metrics: meter{"c-sick": errors.New("node n-7 is on fire"), "c-none": peering.Errorf(peering.ReasonMetricsUnavailable, "no metrics-server")},
		Contracts: func(id string) (OffloadContract, bool) {
			return OffloadContract{Consumer: "a", Closed: id == "c-closed"}, id != "c-unknown"
		},
		Peer: func(ctx context.Context) (peering.ClusterID, bool) {
			md, _ := metadata.FromIncomingContext(ctx)
			return peering.ClusterID(strings.Join(md.Get("peer"), "")), len(md.Get("peer")) > 0
		},
	}
	without := cfg
	without.Metrics = nil
	for name, test := range map[string]struct {
		cfg            OffloadConfig
		peer, contract string
		want           peering.Reason
	}{
		"its consumer":                   {cfg, "a", "c-1", ""},
		"another peer":                   {cfg, "b", "c-1", peering.ReasonContractUnknown},
		"a stranger":                     {cfg, "", "c-1", peering.ReasonPeerNotTrusted},
		"a contract that is not there":   {cfg, "a", "c-unknown", peering.ReasonContractUnknown},
		"one that is closed":             {cfg, "a", "c-closed", peering.ReasonContractClosed},
		"no contract":                    {cfg, "a", "", peering.ReasonRequestInvalid},
		"nothing measures":               {cfg, "a", "c-none", peering.ReasonMetricsUnavailable},
		"a cluster without metrics":      {without, "a", "c-1", peering.ReasonMetricsUnavailable},
		"what is wrong is not for peers": {cfg, "a", "c-sick", peering.ReasonKubernetes},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc, err := NewOffload(test.cfg)
			if err != nil {
				t.Fatal(err)
			}
			g := wiretest.NewServer()
			ententev1.RegisterOffloadServiceServer(g, svc)
			listener := bufconn.Listen(1 << 20)
			go func() { _ = g.Serve(listener) }()
			defer g.Stop()
			conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ctx := t.Context()
			if test.peer != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "peer", test.peer)
			}
			stream, err := ententev1.NewOffloadServiceClient(conn).PodMetrics(ctx, &ententev1.PodMetricsRequest{ContractId: test.contract})
			if err != nil {
				t.Fatal(err)
			}
			msg, err := stream.Recv()
			if test.want == "" {
				if err != nil || len(msg.GetPods()) != 1 || msg.GetPods()[0].GetUid() != "of-c-1" {
					t.Errorf("got %v, %v", msg, err)
				}
				return
			}
			if e := wire.FromStatus(err); e.Reason != test.want || strings.Contains(e.Error(), "fire") {
				t.Errorf("got %v, want %s", e, test.want)
			}
		})
	}
}
