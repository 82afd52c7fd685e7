// ps-lite's van with data links: what patch 0052 creates in place of the ZeroMQ van.
//
// Messages of gradients between a worker and a server go over the link between the two
// (native/byteps/van/links.h), everything else, and what has no link, as before.
//
// A worker notes where the sum that it asks for will be wanted, and the answer is received there.
// The place belongs to BytePS until the answer's callback has run, or the van has stopped. A server
// receives pushes into buffers that are used again.
//
// Threads. The links' thread hands a worker's messages to the customer's thread, which runs BytePS'
// callbacks: these may take their time. A server's are handled by the links' thread itself: all
// that BytePS does there is to hand work to its engine's threads, and to answer. Messages that came
// through ZeroMQ are handled by the customer's thread at the same time; the handler has a lock.
//
// The mutex guards the places, and where servers are; it is innermost.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "answers.h"
#include "broken_link.h"
#include "data_links.h"
#include "native/byteps/leaving.h"
#include "native/byteps/van/buffers.h"
#include "native/byteps/van/links.h"
#include "scheduled.h"
#include "wire.h"

namespace ps {

class DataVan : public ZMQVan, private byteprophet::van::Sink {
 public:
  int Bind(const Node& node, int max_retry) override {
    is_worker_ = node.role == Node::WORKER;
    const int port = ZMQVan::Bind(node, max_retry);
    std::memset(my_node_.endpoint_name, 0, sizeof(my_node_.endpoint_name));
    if (node.role == Node::SERVER) Offer(node.hostname);
    return port;
  }

  void Connect(const Node& node) override {
    ZMQVan::Connect(node);
    if (my_node_.role != Node::WORKER || node.role != Node::SERVER || my_node_.id == Node::kEmpty)
      return;
    const auto offer = byteprophet::van::ReadOffer(node.endpoint_name);
    if (!offer) return;
    const std::string at = node.hostname + ":" + std::to_string(offer->port);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      servers_[node.id] = at;
    }
    const std::string why = links_.Connect(node.id, my_node_.id, node.hostname, *offer);
    if (why.empty() || std::exchange(has_warned_, true)) return;  // a firewall keeps many away
    byteprophet::Say("warning",
                     "no data link to the server at " + at + ": " + why +
                         "; gradients go over ZeroMQ where there is no link, which takes more of "
                         "the processor; let workers reach servers at all ports, or set "
                         "BYTEPROPHET_VAN=zmq");
  }

  int SendMsg(Message& msg) override {
    if (!IsForLink(msg)) return ZMQVan::SendMsg(msg);
    if (IsPull(msg)) AddPlace(msg.meta);
    byteprophet::van::Outgoing outgoing = ToOutgoing(msg);
    const size_t size = outgoing.size_bytes();
    const bool notice = !is_worker_ && msg.data.empty();
    const auto result = links_.Send(msg.meta.recver,
                                    notice ? byteprophet::van::kNotices : byteprophet::van::kValues,
                                    std::move(outgoing));
    if (result == byteprophet::van::Links::Result::kSent) return static_cast<int>(size);
    if (IsPull(msg)) TakePlace(PlaceOf(msg.meta));
    if (result == byteprophet::van::Links::Result::kNoLink) return ZMQVan::SendMsg(msg);
    LOG(INFO) << "node " << msg.meta.recver
              << " has closed its connection: a message to it is dropped";
    return 0;
  }

  void Stop() override {
    links_.Stop(std::chrono::seconds(2));  // others may still need what was sent last
    byteprophet::BrokenLink::OfProcess().Forget();
    ZMQVan::Stop();
  }

 private:
  // Who asked, and which answer: a server has one for each request of a customer.
  struct PlaceId {
    int server, customer, timestamp;
    bool operator==(const PlaceId&) const = default;
  };
  struct HashOfPlaceId {
    size_t operator()(const PlaceId& id) const {
      const uint64_t low = static_cast<uint32_t>(id.timestamp);
      const uint64_t high = static_cast<uint32_t>(id.server * 31 + id.customer);
      return std::hash<uint64_t>()(high << 32 | low);
    }
  };
  struct Room {
    char* at = nullptr;
    size_t size_bytes = 0;
  };

  // Whether links carry such messages, and there is one to the receiver.
  bool IsForLink(const Message& msg) const {
    if (!msg.meta.control.empty() || msg.meta.simple_app || !msg.meta.body.empty()) return false;
    const size_t parts = msg.data.size();
    if (parts == 1 || parts > byteprophet::van::kMostParts || msg.meta.data_type.size() != parts)
      return false;
    const size_t small = parts == 0 ? 0 : msg.data[0].size() + (parts > 2 ? msg.data[2].size() : 0);
    return small <= byteprophet::van::kMostSmallBytes && links_.Has(msg.meta.recver);
  }

  static bool IsPull(const Message& msg) { return msg.meta.request && !msg.meta.push; }

  static byteprophet::van::Outgoing ToOutgoing(const Message& msg) {
    const Meta& meta = msg.meta;
    byteprophet::van::Outgoing outgoing;
    byteprophet::van::Head& head = outgoing.packet.head;
    head.command = meta.head;
    head.application = meta.app_id;
    head.customer = meta.customer_id;
    head.timestamp = meta.timestamp;
    head.value_length = meta.val_len;
    head.option = meta.option;
    head.is_request = meta.request;
    head.is_push = meta.push;
    head.parts = static_cast<uint8_t>(msg.data.size());
    head.key = meta.key;
    std::copy(meta.data_type.begin(), meta.data_type.end(), head.types.begin());
    char* small = outgoing.packet.small.data();
    const auto add = [&small](const SArray<char>& part) {
      if (part.size() > 0) std::memcpy(small, part.data(), part.size());
      small += part.size();
      return static_cast<uint32_t>(part.size());
    };
    if (head.parts > 0) head.keys_bytes = add(msg.data[0]);
    if (head.parts > 2) head.lengths_bytes = add(msg.data[2]);
    if (head.parts > 0) {
      head.values_bytes = msg.data[1].size();
      outgoing.values = msg.data[1].data();
      outgoing.keep = msg.data[1].ptr();
    }
    const int64_t began = byteprophet::MessageBegins();
    if (byteprophet::IsRecorded(msg, began)) {
      outgoing.sent = [row = byteprophet::RowOf(msg, byteprophet::Message::kSend, began)] {
        byteprophet::MessageRecorder::Get().Ended(row);
      };
    }
    return outgoing;
  }

  void Offer(const std::string& address) {
    static_assert(sizeof(my_node_.endpoint_name) >= byteprophet::van::kOfferBytes);
    try {
      // Without a length: ps-lite writes the text into its log otherwise.
      byteprophet::van::Write(links_.Listen(address), my_node_.endpoint_name);
    } catch (const std::exception& error) {
      byteprophet::Say("warning",
                       std::string("no data links: ") + error.what() +
                           "; gradients go over ZeroMQ, which takes more of the processor");
    }
  }

  // ---- what comes: the links' thread

  std::shared_ptr<char> Place(int peer, const byteprophet::van::Head& head) override {
    if (is_worker_ && !head.is_request && !head.is_push) {
      const Room room = TakePlace({peer, head.customer, head.timestamp});
      if (room.size_bytes >= head.values_bytes) return {std::shared_ptr<char>(), room.at};
    }
    return byteprophet::van::Buffers::OfProcess().Take(head.values_bytes);
  }

  void Deliver(int peer, const byteprophet::van::Packet& packet,
               std::shared_ptr<char> values) override {
    const int64_t arrived_ns = byteprophet::MessageBegins();
    const byteprophet::van::Head& head = packet.head;
    Message msg;
    msg.meta.head = head.command;
    msg.meta.app_id = head.application;
    msg.meta.customer_id = head.customer;
    msg.meta.timestamp = head.timestamp;
    msg.meta.sender = peer;
    msg.meta.request = head.is_request != 0;
    msg.meta.push = head.is_push != 0;
    msg.meta.key = head.key;
    msg.meta.val_len = head.value_length;
    msg.meta.option = head.option;
    msg.meta.data_size = static_cast<int>(head.keys_bytes + head.values_bytes + head.lengths_bytes);
    msg.data.resize(head.parts);
    for (int part = 0; part < head.parts; ++part)
      msg.meta.data_type.push_back(static_cast<DataType>(head.types[part]));
    const char* small = packet.small.data();
    if (head.parts > 0) {
      msg.data[0].CopyFrom(small, head.keys_bytes);
      if (values) {
        char* const at = values.get();
        msg.data[1].reset(at, head.values_bytes, [kept = std::move(values)](char*) {});
      }
    }
    if (head.parts > 2) msg.data[2].CopyFrom(small + head.keys_bytes, head.lengths_bytes);
    byteprophet::NoteReceived(msg, arrived_ns);
    Customer* const customer = CustomerOf(msg.meta);
    if (is_worker_) {
      customer->Accept(msg);
    } else {
      customer->Handle(msg);
    }
  }

  void Joined(int peer, int fd) override { byteprophet::Answers::Get().Heard(peer, fd); }
  void Left(int peer, const std::string& why, bool has_waited) override {
    if (!is_worker_) return byteprophet::Answers::Get().Heard(peer, -1);
    std::string at;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      at = servers_.at(peer);
    }
    byteprophet::BrokenLink::OfProcess().Broke(
        "the data link to the server at " + at + " has ended (" + why +
            ") and what was on its way over it is lost: the job cannot go on",
        has_waited);
  }

  // As ProcessDataMsg finds it. It is there until the van has stopped.
  Customer* CustomerOf(const Meta& meta) {
    const int id = is_worker_ ? meta.customer_id : meta.app_id;
    if (customer_ == nullptr || application_ != meta.app_id || customer_id_ != id) {
      customer_ = Postoffice::Get()->GetCustomer(meta.app_id, id, 5);
      CHECK(customer_) << "timeout (5 sec) to wait App " << meta.app_id << " customer " << id
                       << " ready";
      application_ = meta.app_id;
      customer_id_ = id;
    }
    return customer_;
  }

  // ---- where sums are wanted

  static PlaceId PlaceOf(const Meta& meta) {
    return {meta.recver, meta.customer_id, meta.timestamp};
  }

  void AddPlace(const Meta& meta) {
    if (meta.addr == 0 || meta.val_len <= 0) return;
    std::lock_guard<std::mutex> lock(mutex_);
    places_[PlaceOf(meta)] = {reinterpret_cast<char*>(meta.addr),
                              static_cast<size_t>(meta.val_len)};
  }

  // Nothing where none is known.
  Room TakePlace(const PlaceId& id) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = places_.extract(id);
    return found.empty() ? Room() : found.mapped();
  }

  bool is_worker_ = false;  // from before the links' thread starts

  bool has_warned_ = false;  // of the thread that connects

  std::mutex mutex_;                              // guards what follows, up to places_
  std::unordered_map<int, std::string> servers_;  // where they offer links, by number
  std::unordered_map<PlaceId, Room, HashOfPlaceId> places_;

  // Of the links' thread.
  Customer* customer_ = nullptr;
  int application_ = 0, customer_id_ = 0;

  byteprophet::van::Links links_{
      *this, byteprophet::van::Links::kPatience,
      byteprophet::LinkVanishesAfter()};  // last: its thread uses the rest
};

}  // namespace ps
