import { defineHook, getStepMetadata, getWritable, RetryableError, sleep } from 'workflow';

export interface Order {
  id: string;
  customer: string;
  item: string;
  amount: number;
}

export interface Receipt {
  id: string;
  cents: number;
  payment: string;
  approvedBy: string;
}

/** A manager's decision about an order. */
export const approval = defineHook<{ approved: boolean; by: string }>();

/** Checks an order, has it approved, charges the card, packs the order and writes a letter. */
export async function fulfil(order: Order): Promise<Receipt> {
  'use workflow';

  const [, cents] = await Promise.all([
    checkStock(order.item, order.amount),
    computePrice(order.item, order.amount),
    checkFraud(order.customer),
  ]);
  const { approved, by } = await approval.create({ token: `approve-${order.id}` });
  if (!approved) throw new Error(`${by} rejected order ${order.id}`);
  const payment = await chargeCard(order.id);
  await sleep('1s');
  await writeLetter(order.customer, order.id, cents);
  return { id: order.id, cents, payment, approvedBy: by };
}

async function pause(milliseconds: number): Promise<void> {
  await new Promise((resolve) => setTimeout(resolve, milliseconds));
}

async function checkStock(item: string, amount: number): Promise<number> {
  'use step';
  await pause(300);
  const stock = item === 'lamp' ? 12 : 0;
  if (stock < amount) throw new Error(`only ${stock} of ${item} in stock`);
  return stock - amount;
}

async function computePrice(item: string, amount: number): Promise<number> {
  'use step';
  await pause(500);
  return (item === 'lamp' ? 1990 : 990) * amount;
}

async function checkFraud(customer: string): Promise<string> {
  'use step';
  await pause(700);
  return `${customer} is known`;
}

/** The bank refuses twice. The step runs again after a second. */
async function chargeCard(orderId: string): Promise<string> {
  'use step';
  const { attempt } = getStepMetadata();
  if (attempt <= 2) throw new RetryableError('the bank does not answer', { retryAfter: '1s' });
  return `payment-${orderId}-${attempt}`;
}

async function writeLetter(customer: string, orderId: string, cents: number): Promise<void> {
  'use step';
  const letter = `Dear ${customer}, your order ${orderId} for ${cents / 100} euros is packed.`;
  const writer = getWritable<string>({ namespace: 'letter' }).getWriter();
  for (const word of letter.split(' ')) {
    await writer.write(`${word} `);
    await pause(50);
  }
  writer.releaseLock();
  await getWritable({ namespace: 'letter' }).close();
}
