// Lists a directory, writes a file from standard input, or reads one to standard output, with nothing of Speedwell but
// its protocols: gRPC to the nameserver, frames to dataservers (docs/reference/nameserver-interface.md, docs/reference/data-channel.md).
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"

	"github.com/dchest/blake2b"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	pb "example.org/speedwell/speedwellpb"
)

const (
	blockBytes = 64 << 10
	readBytes  = 64 * blockBytes
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	zeros      = crc32.Checksum(make([]byte, blockBytes), castagnoli)
)

type client struct {
	pb.NameserverClient
	tls        *tls.Config
	statistics *pb.StatisticsReply
	key        *pb.ProofKeyReply // with which we prove to dataservers who we are
}

func connect(ctx context.Context, nameserver, identity string) (*client, error) {
	own := filepath.Join(identity, "identity.pem") // key and certificate
	certificate, err := tls.LoadX509KeyPair(own, own)
	if err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(filepath.Join(identity, "authority.pem"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	c := &client{tls: &tls.Config{Certificates: []tls.Certificate{certificate}, RootCAs: roots,
		MinVersion: tls.VersionTLS13, ServerName: "nameserver.speedwell"}}
	connection, err := grpc.NewClient(nameserver, grpc.WithTransportCredentials(credentials.NewTLS(c.tls)))
	if err != nil {
		return nil, err
	}
	c.NameserverClient = pb.NewNameserverClient(connection)
	if c.statistics, err = c.Statistics(ctx, &pb.StatisticsRequest{}); err != nil {
		return nil, err
	}
	c.key, err = c.ProofKey(ctx, &pb.ProofKeyRequest{})
	return c, err
}

func (c *client) list(ctx context.Context, path string, out io.Writer) error {
	for page := (&pb.ListReply{More: true}); page.More; {
		after := []byte{}
		if n := len(page.Entries); n > 0 {
			after = page.Entries[n-1].Name
		}
		var err error
		if page, err = c.List(ctx, &pb.ListRequest{Path: []byte(path), After: after}); err != nil {
			return err
		}
		for _, entry := range page.Entries {
			fmt.Fprintf(out, "%d %s\n", entry.Attributes.Size, entry.Name)
		}
	}
	return nil
}

// write makes a file of at most 1 GiB with one append, which has all replicas before it is acknowledged.
func (c *client) write(ctx context.Context, path string, data []byte) error {
	made, err := c.Create(ctx, &pb.CreateRequest{Path: []byte(path), Mode: 0o644, Exclusive: true,
		ExpectedSize: uint64(len(data)), Id: &pb.ChangeId{Requester: rand.Uint64(), Sequence: 1}})
	if err != nil || len(data) == 0 {
		return err
	}
	file := made.Attributes
	channel, err := c.dataserver(file.Replicas[0]) // the primary
	if err != nil {
		return err
	}
	defer channel.Close()
	reply, err := channel.ask(&pb.DataRequest{Token: file.Token, Operation: &pb.DataRequest_Append{
		Append: &pb.AppendOperation{FileId: file.FileId, Inode: file.Inode, Path: []byte(path),
			ChunkSize: file.ChunkSize, Length: uint64(len(data)), Relay: file.Replicas[1:], Epoch: file.Epoch,
			Records: []*pb.AppendRecord{{Writer: rand.Uint64(), Sequence: 1}}, MinReplicas: file.MinReplicas}}}, data)
	if err != nil {
		return err
	}
	_, err = c.Commit(ctx, &pb.CommitRequest{Inode: file.Inode, FileId: file.FileId, Size: reply.FileSize})
	return err
}

func (c *client) read(ctx context.Context, path string, out io.Writer) error {
	found, err := c.Lookup(ctx, &pb.LookupRequest{Path: []byte(path)})
	if err != nil {
		return err
	}
	file := found.Attributes
	for offset := uint64(0); offset < file.Size; {
		var data []byte
		err = errors.New("the file has no replica")
		for _, replica := range file.Replicas { // another one where a replica fails
			if data, err = c.readFrom(replica, file, offset); err == nil {
				break
			}
		}
		if err != nil {
			return err
		}
		if _, err := out.Write(data); err != nil {
			return err
		}
		offset += uint64(len(data))
	}
	return nil
}

// readFrom returns whole blocks from `offset` on, each compared with its sum.
func (c *client) readFrom(replica *pb.Replica, file *pb.Attributes, offset uint64) ([]byte, error) {
	channel, err := c.dataserver(replica)
	if err != nil {
		return nil, err
	}
	defer channel.Close()
	reply, err := channel.ask(&pb.DataRequest{Token: file.Token, Operation: &pb.DataRequest_Read{
		Read: &pb.ReadOperation{FileId: file.FileId, Offset: offset, Length: min(readBytes, file.Size-offset),
			Sums: true}}}, nil)
	if err != nil {
		return nil, err
	}
	if reply.Length == 0 {
		return nil, fmt.Errorf("%s lacks bytes of the file", replica.DataserverId)
	}
	data := make([]byte, reply.Length)
	if _, err := io.ReadFull(channel, data); err != nil {
		return nil, err
	}
	for i := 0; i*blockBytes < len(data); i++ {
		block := data[i*blockBytes : min((i+1)*blockBytes, len(data))]
		if crc32.Checksum(block, castagnoli)^zeros != binary.BigEndian.Uint32(reply.Sums[4*i:]) {
			return nil, fmt.Errorf("%s has a damaged block", replica.DataserverId)
		}
	}
	return data, nil
}

type channel struct{ net.Conn }

// dataserver connects, asks who answers there, and proves who we are.
func (c *client) dataserver(server *pb.Replica) (*channel, error) {
	address := net.JoinHostPort(server.Host, fmt.Sprint(server.Port))
	var connection net.Conn
	var err error
	if c.statistics.EncryptsData {
		config := c.tls.Clone()
		config.ServerName = "dataserver.speedwell"
		connection, err = tls.Dial("tcp", address, config)
	} else {
		connection, err = net.Dial("tcp", address)
	}
	if err != nil {
		return nil, err
	}
	there := &channel{connection}
	who, err := there.ask(&pb.DataRequest{Operation: &pb.DataRequest_Identity{Identity: &pb.IdentityOperation{}}}, nil)
	if err == nil && (who.DataserverId != server.DataserverId || !bytes.Equal(who.Namespace, c.statistics.Namespace)) {
		err = fmt.Errorf("%s answers at %s, not %s of this installation", who.DataserverId, address, server.DataserverId)
	}
	if err == nil && c.key.Client != "" {
		var mac interface {
			io.Writer
			Sum([]byte) []byte
		}
		mac, err = blake2b.New(&blake2b.Config{Size: 16, Key: c.key.Secret, Person: []byte("proof")})
		if err == nil {
			mac.Write(append(who.Nonce, server.DataserverId...))
			err = there.send(&pb.DataRequest{Operation: &pb.DataRequest_Proof{
				Proof: &pb.ProofOperation{Client: c.key.Client, Key: c.key.Key, Mac: mac.Sum(nil)}}}, nil)
		}
	}
	if err != nil {
		connection.Close()
	}
	return there, err
}

func (c *channel) send(request *pb.DataRequest, data []byte) error {
	message, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	frame := binary.BigEndian.AppendUint32([]byte("SPW1"), uint32(len(message)))
	_, err = c.Write(append(append(frame, message...), data...))
	return err
}

// ask sends a request with the bytes that belong to it, and returns the answer; bytes may follow that.
func (c *channel) ask(request *pb.DataRequest, data []byte) (*pb.DataReply, error) {
	if err := c.send(request, data); err != nil {
		return nil, err
	}
	head := make([]byte, 8)
	if _, err := io.ReadFull(c, head); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(head[4:])
	if string(head[:4]) != "SPW1" || length > 1<<20 {
		return nil, fmt.Errorf("%s speaks another protocol: it begins with %q", c.RemoteAddr(), head[:4])
	}
	message := make([]byte, length)
	if _, err := io.ReadFull(c, message); err != nil {
		return nil, err
	}
	reply := &pb.DataReply{}
	if err := proto.Unmarshal(message, reply); err != nil {
		return nil, err
	}
	if reply.Status != pb.Status_OK {
		return nil, fmt.Errorf("%s: %s %s", c.RemoteAddr(), reply.Status, reply.Message)
	}
	return reply, nil
}

func run(arguments []string) error {
	if len(arguments) != 4 {
		return errors.New("usage: speedwell NAMESERVER IDENTITY list|write|read PATH")
	}
	ctx, path := context.Background(), arguments[3]
	c, err := connect(ctx, arguments[0], arguments[1])
	if err != nil {
		return err
	}
	switch arguments[2] {
	case "list":
		return c.list(ctx, path, os.Stdout)
	case "write":
		data, err := io.ReadAll(os.Stdin)
		if err != nil {
			return err
		}
		return c.write(ctx, path, data)
	case "read":
		return c.read(ctx, path, os.Stdout)
	}
	return fmt.Errorf("%s: it is list, write or read", arguments[2])
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
